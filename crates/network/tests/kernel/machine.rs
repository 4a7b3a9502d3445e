//! A network on a machine of its own, and sandboxes that are nothing but namespaces.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use asb_network::policy::{Allowed, Labels, Namespaces, Policy, PolicyPeer, Sandbox, Selector};
use asb_network::testing::{self, Outside};
use asb_network::{Namespace, Network};

pub struct Machine<'a> {
    pub network: Network,
    pub data_dir: tempfile::TempDir,
    pub outside: &'a Outside,
}

pub fn on_a_machine(story: impl FnOnce(&Machine<'_>) + Send) {
    testing::on_a_machine(|outside| {
        let data_dir = tempfile::tempdir().unwrap();
        let network = Network::open(data_dir.path(), &[]).unwrap();
        story(&Machine { network, data_dir, outside });
    });
}

impl Machine<'_> {
    /// A sandbox of this name and label in the namespace `default`, known to the rules.
    pub fn sandbox(&self, name: &str) -> Namespace {
        let namespace = self.take();
        let sandbox = known(name, &namespace);
        self.network.update(|facts| drop(facts.sandboxes.insert(name.to_owned(), sandbox))).unwrap();
        namespace
    }

    /// One that nobody knows yet.
    pub fn take(&self) -> Namespace {
        self.network.take_parked().unwrap_or_else(|| self.network.make().unwrap())
    }
}

pub fn known(name: &str, namespace: &Namespace) -> Sandbox {
    let labels = Labels::from([("app".to_owned(), name.to_owned())]);
    Sandbox {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        labels,
        address: namespace.address,
        ports: Vec::new(),
        host: None,
        ready: true,
    }
}

/// Does something in a sandbox.
pub fn inside<T: Send>(sandbox: &Namespace, work: impl FnOnce() -> T + Send) -> T {
    testing::inside(sandbox.fd.as_fd(), work)
}

/// Who sent the datagram that `send` makes arrive, if it does.
pub fn arrives(receiver: &UdpSocket, send: impl FnOnce()) -> Option<IpAddr> {
    arrives_within(Duration::from_millis(500), receiver, send)
}

/// The same for one that has to arrive, on a machine that may be busy.
pub fn arrives_within(patience: Duration, receiver: &UdpSocket, send: impl FnOnce()) -> Option<IpAddr> {
    receiver.set_read_timeout(Some(patience)).unwrap();
    send();
    receiver.recv_from(&mut [0; 64]).ok().map(|(_, from)| from.ip())
}

pub fn app(name: &str) -> Selector {
    Selector { labels: Labels::from([("app".to_owned(), name.to_owned())]), expressions: Vec::new() }
}

/// A policy for the sandboxes of one label.
pub fn allow(selector: &str, ingress_from: Option<&str>, egress_to: Option<&str>) -> Policy {
    let with = |name: &str| {
        let peer = PolicyPeer::Sandboxes { namespaces: Namespaces::Own, selector: app(name) };
        vec![Allowed { peers: Some(vec![peer]), ports: None }]
    };
    Policy {
        namespace: "default".to_owned(),
        selector: app(selector),
        ingress: ingress_from.map(with),
        egress: egress_to.map(with),
    }
}

/// What a program of the machine says.
pub fn text(program: &str, args: &str) -> String {
    let output = std::process::Command::new(program).args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
