//! The network of real sandboxes, on a machine of their own with a world outside it. Every defence is attacked from
//! inside, by root there.

use asb_network::testing::{
    MACHINE, MACHINE_LINK, MACHINE6, METADATA, METADATA6, Outside, PRIVATE, PRIVATE6, PUBLIC, PUBLIC6,
    on_a_machine, serve,
};
use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};

/// Connects to every address that follows, and prints for each what became of it.
pub const PROBE: &str = r#"
import os, socket, sys
if not os.path.exists("/.asb/sandboxd"): sys.exit("not inside a sandbox")
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 3) as it: print(target, "answered", it.recv(64).decode())
    except ConnectionRefusedError: print(target, "refused")
    except OSError as error: print(target, type(error).__name__)
"#;

/// Packets that no ordinary socket sends.
pub const TRICKS: &str = r#"
import os, socket, sys
if not os.path.exists("/.asb/sandboxd"): sys.exit("not inside a sandbox")
def attempt(what, how):
    try: how(); print(what, "worked")
    except OSError as error: print(what, "failed")
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
attempt("icmp", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("raw6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6))
attempt("bind6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).bind(("fd12::77", 0)))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
def other_source():
    it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    it.bind((sys.argv[1], 0))
attempt("bind", other_source)
def transparent():
    it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    it.setsockopt(socket.SOL_IP, 19, 1)
attempt("transparent", transparent)
def add_address():
    it = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    body = bytes([2, 32, 0, 0]) + (2).to_bytes(4, "little") + bytes([8, 0, 2, 0]) + socket.inet_aton(sys.argv[1])
    it.send((16 + len(body)).to_bytes(4, "little") + bytes([20, 0, 5, 6]) + bytes(8) + body)
    answer = it.recv(4096)
    code = int.from_bytes(answer[16:20], "little", signed=True)
    if code: raise OSError(-code, "")
attempt("address", add_address)
def device():
    it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    import fcntl, struct
    fcntl.ioctl(it, 0x8914, struct.pack("16sH14x", b"eth0", 0))
attempt("interface", device)
"#;

/// A Pod that does nothing, with its name as its label.
pub fn pod(name: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: host, command: [sleep, "1000"], ports: [{{containerPort: 8080, name: web}}]}}
"#
    )
}

fn run(engine: &Engine, name: &str) {
    stdout(&engine.asb(&["run", "--detach", "--name", name]));
}

pub fn address(engine: &Engine, name: &str) -> String {
    stdout(&engine.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.podIP}"]))
}

fn address6(engine: &Engine, name: &str) -> String {
    stdout(&engine.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.podIPs[1].ip}"]))
}

/// What became of connecting from a sandbox to each of these.
fn probe(engine: &Engine, from: &str, targets: &[String]) -> Vec<String> {
    let mut args = vec!["exec", from, "--", "python3", "-c", PROBE];
    args.extend(targets.iter().map(String::as_str));
    let lines = stdout(&engine.asb(&args));
    lines.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

pub fn with_engine(story: impl FnOnce(&mut Engine, &Outside) + Send) {
    on_a_machine(|outside| {
        let mut engine = Engine::start();
        story(&mut engine, outside);
        engine.stop();
    });
}

#[test]
fn sandbox_reaches_the_public_world_and_nothing_else() {
    with_engine(|engine, outside| {
        let _public = outside.serve(PUBLIC, 80);
        let _private = outside.serve(PRIVATE, 80);
        let _metadata = outside.serve(METADATA, 80);
        let _others = [PUBLIC6, PRIVATE6, METADATA6].map(|address| outside.serve(address, 80));
        // On every address of the machine, of either family.
        let _service = serve(std::net::Ipv6Addr::UNSPECIFIED, 9000);
        run(engine, "a");
        run(engine, "b");
        let listen = "import socket\nit = socket.create_server(('', 80), family=socket.AF_INET6, dualstack_ipv6=True)\nprint('up', flush=True)\nwhile True: it.accept()[0].sendall(b'hello')";
        let _server = Background::start(engine, "b", listen);
        let api = engine.info["api"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
        let gateway = gateway(&address(engine, "a"));
        let gateway6 = address6(engine, "a").rsplit_once(':').unwrap().0.to_owned() + ":1";
        let refused = [
            format!("{PRIVATE}:80"),
            format!("{METADATA}:80"),
            format!("{MACHINE}:9000"),
            format!("{gateway}:9000"),
            format!("{MACHINE}:{api}"),
            format!("{gateway}:{api}"),
            "127.0.0.1:9000".to_owned(),
            format!("127.0.0.1:{api}"),
            format!("{}:80", address(engine, "b")),
            // The same by IPv6.
            format!("{PRIVATE6}:80"),
            format!("{METADATA6}:80"),
            format!("{MACHINE6}:9000"),
            format!("{gateway6}:9000"),
            format!("{MACHINE6}:{api}"),
            format!("::1:{api}"),
            format!("{}:80", address6(engine, "b")),
        ];
        for (target, outcome) in refused.iter().zip(probe(engine, "a", &refused)) {
            assert_eq!(outcome, "refused", "{target}");
        }
        assert_eq!(probe(engine, "a", &[format!("{PUBLIC}:80")]), [format!("answered {MACHINE}")]);
        assert_eq!(probe(engine, "a", &[format!("{PUBLIC6}:80")]), [format!("answered {MACHINE6}")]);
        let link = format!("{MACHINE_LINK}%eth0:9000");
        assert!(!probe(engine, "a", std::slice::from_ref(&link))[0].starts_with("answered"), "{link}");
    });
}

#[test]
fn root_inside_can_neither_forge_packets_nor_change_its_interface() {
    with_engine(|engine, _| {
        run(engine, "a");
        let said = stdout(&engine.asb(&["exec", "a", "--", "python3", "-c", TRICKS, "10.200.0.77"]));
        let tried: Vec<_> = said.lines().collect();
        assert_eq!(tried.len(), 9, "{said}");
        assert!(tried.iter().all(|line| line.ends_with(" failed")), "{said}");
    });
}

#[test]
fn policies_open_and_close_the_way_between_sandboxes() {
    with_engine(|engine, _| {
        for name in ["client", "server", "other"] {
            stdout(&engine.kubectl_apply(&pod(name)));
        }
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=30s"]));
        let listen = "import socket, threading\ndef run(port):\n  it = socket.create_server(('', port))\n  while True: it.accept()[0].sendall(b'hello')\nfor port in (8080, 9090): threading.Thread(target=run, args=(port,)).start()\nprint('up', flush=True)";
        let _server = Background::start_in_pod(engine, "server", listen);
        // By name, which is known to its neighbours without any Service.
        let reaches = |from: &str, port: u16| {
            let args = ["exec", from, "--", "python3", "-c", PROBE, &format!("server:{port}")];
            stdout(&engine.kubectl(&args)).contains("answered hello")
        };
        assert!(!reaches("client", 8080));
        stdout(&engine.kubectl_apply(POLICIES));
        eventually("the policy holds", || reaches("client", 8080));
        assert!(!reaches("client", 9090), "another port");
        assert!(!reaches("other", 8080), "somebody else");
        let relabel = ["label", "pod", "other", "--overwrite", "app=client"];
        stdout(&engine.kubectl(&relabel));
        eventually("labels decide", || reaches("other", 8080));
        stdout(&engine.kubectl(&["delete", "networkpolicy", "server"]));
        eventually("what was allowed is taken back", || !reaches("client", 8080));
        stdout(&engine.kubectl(&["delete", "pods", "--all"]));
    });
}

/// `client` may connect to the port `web` of `server`, and everybody may ask for names.
pub const POLICIES: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [client]}]}}]
    ports: [{port: web}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}}]
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}]
    ports: [{port: 53, protocol: UDP}]
"#;

#[test]
fn names_of_sandboxes_and_services_are_known_to_their_neighbours() {
    with_engine(|engine, _| {
        run(engine, "a");
        run(engine, "b");
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: both}\nspec: {clusterIP: None, selector: {app: x}}\n";
        stdout(&engine.kubectl_apply(service));
        for name in ["a", "b"] {
            stdout(&engine.kubectl(&["label", "pod", name, "app=x"]));
        }
        let (a, b) = (address(engine, "a"), address(engine, "b"));
        let lookup_in = |family: &str, name: &str| {
            let script = "import socket, sys\nfamily = getattr(socket, sys.argv[2])\nprint(*sorted({it[4][0] for it in socket.getaddrinfo(sys.argv[1], 1, family=family)}))";
            let output = engine.asb(&["exec", "a", "--", "python3", "-c", script, name, family]);
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let lookup = |name: &str| lookup_in("AF_INET", name);
        assert_eq!(lookup_in("AF_INET6", "b"), Some(address6(engine, "b")));
        for name in ["b", "b.default", "b.default.svc.cluster.local", "B.default.svc.cluster.local."] {
            assert_eq!(lookup(name).as_ref(), Some(&b), "{name}");
        }
        let mut all = [a.as_str(), b.as_str()];
        all.sort_unstable();
        eventually("the Service stands for both", || lookup("both").as_deref() == Some(&all.join(" ")));
        assert_eq!(lookup("nobody"), None);
        stdout(&engine.asb(&["rm", "b"]));
        eventually("who is gone has no name", || lookup("b").is_none());
        let file = stdout(&engine.asb(&["exec", "a", "--", "cat", "/etc/resolv.conf"]));
        assert!(file.contains("search default.svc.cluster.local svc.cluster.local cluster.local"), "{file}");
    });
}

#[test]
fn open_connections_live_through_kill_nine_of_the_engine() {
    with_engine(|engine, outside| {
        use std::io::{Read, Write};
        let service = outside.run(|| std::net::TcpListener::bind((PUBLIC, 7)).unwrap());
        run(engine, "a");
        let echo = format!(
            "import socket\nit = socket.create_connection(('{PUBLIC}', 7))\nprint('up', flush=True)\nwhile True: it.sendall(it.recv(64))"
        );
        let background = format!(
            "setsid python3 -c \"{echo}\" > /tmp/out 2>&1 & until grep -q up /tmp/out; do sleep 0.01; done"
        );
        stdout(&engine.asb(&["exec", "a", "--", "sh", "-c", &background]));
        let (mut far, from) = service.accept().unwrap();
        assert_eq!(from.ip(), MACHINE);
        far.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let mut exchange = |what: &[u8]| {
            far.write_all(what).unwrap();
            let mut read = vec![0; what.len()];
            far.read_exact(&mut read).unwrap();
            assert_eq!(read, what);
        };
        exchange(b"before");
        let before = address(engine, "a");
        engine.kill();
        exchange(b"while no engine is there");
        engine.restart();
        exchange(b"with the next engine");
        assert_eq!(address(engine, "a"), before);
        let _public = outside.serve(PUBLIC, 80);
        assert_eq!(probe(engine, "a", &[format!("{PUBLIC}:80")]), [format!("answered {MACHINE}")]);
        run(engine, "b");
        assert_ne!(address(engine, "b"), before);
    });
}

#[test]
fn rules_come_back_at_once_when_a_firewall_is_reloaded() {
    with_engine(|engine, _| {
        let _service = serve([0, 0, 0, 0], 9000);
        run(engine, "a");
        let flushed = std::process::Command::new("nft").args(["flush", "ruleset"]).status();
        assert!(flushed.expect("the tests need nftables").success());
        eventually("the machine is out of reach again", || {
            probe(engine, "a", &[format!("{MACHINE}:9000")]) == ["refused"]
        });
    });
}

#[test]
fn engines_that_are_killed_in_a_storm_leave_no_wires_and_no_rules() {
    with_engine(|engine, outside| {
        let _public = outside.serve(PUBLIC, 80);
        for round in 0..10u64 {
            let pods: String = (0..4).map(|at| pod(&format!("r{round}-{at}")) + "---\n").collect();
            std::thread::scope(|scope| {
                scope.spawn(|| engine.kubectl_apply(&pods));
                eventually("the storm begins", || {
                    !engine.kubectl(&["get", "pods", "-o", "name"]).stdout.is_empty()
                });
                // Each time at another point of the starts.
                std::thread::sleep(std::time::Duration::from_millis(round * 5));
            });
            engine.kill();
            engine.restart();
            stdout(&engine.kubectl(&["delete", "pods", "--all"]));
        }
        run(engine, "last");
        assert_eq!(probe(engine, "last", &[format!("{PUBLIC}:80")]), [format!("answered {MACHINE}")]);
    });
}

#[test]
fn a_hundred_sandboxes_at_once_have_addresses_of_their_own() {
    with_engine(|engine, _| {
        let pods: String = (0..100).map(|at| pod(&format!("p{at}")) + "---\n").collect();
        stdout(&engine.kubectl_apply(&pods));
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]));
        let said = stdout(&engine.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].status.podIP}"]));
        let addresses: std::collections::BTreeSet<_> = said.split_whitespace().collect();
        assert_eq!(addresses.len(), 100, "{said}");
        let inside = stdout(&engine.kubectl(&["exec", "p7", "--", "cat", "/etc/hosts"]));
        assert!(addresses.iter().any(|address| inside.contains(*address)), "{inside}");
        stdout(&engine.kubectl(&["delete", "pods", "--all", "--wait=true"]));
    });
}

#[test]
fn machine_without_the_right_to_a_network_says_so_and_isolates_all_the_same() {
    on_a_machine(|outside| {
        let _public = outside.serve(PUBLIC, 80);
        // Every block of addresses that an engine could choose is somebody else's here.
        asb_network::testing::ip("route add 10.0.0.0/8 via 192.0.2.1");
        let engine = Engine::start();
        run(&engine, "a");
        assert_ne!(probe(&engine, "a", &[format!("{PUBLIC}:80")]), [format!("answered {MACHINE}")]);
        let node: Value =
            serde_json::from_str(&stdout(&engine.kubectl(&["get", "node", "-o", "json"]))).unwrap();
        let conditions = node["items"][0]["status"]["conditions"].as_array().unwrap().clone();
        let network = conditions.iter().find(|it| it["type"] == "NetworkUnavailable").unwrap();
        assert_eq!(
            (network["status"].as_str(), network["reason"].as_str()),
            (Some("True"), Some("LoopbackOnly"))
        );
        containers_share_what_there_is(engine);
    });
}

/// Also where that is only loopback, also after a restart of the engine and of a container.
fn containers_share_what_there_is(mut engine: Engine) {
    let container =
        |name: &str, script: &str| json!({"name": name, "image": "host", "command": ["sh", "-c", script]});
    let ask = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; \
               do sleep 0.1; done; echo there; until [ -e /tmp/die ]; do sleep 0.1; done; exit 1";
    let spec = json!({"containers": [
        container("a", "exec python3 -m http.server 8000 --bind 127.0.0.1"), container("b", ask),
    ]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "two"}, "spec": spec});
    stdout(&engine.kubectl_apply(&pod.to_string()));
    let says_there = |engine: &Engine| text(&engine.kubectl(&["logs", "two", "-c", "b"])) == "there\n";
    eventually("b reaches a", || says_there(&engine));
    engine.kill();
    engine.restart();
    // It may be killed with the container that it ends.
    engine.kubectl(&["exec", "two", "-c", "b", "--", "touch", "/tmp/die"]);
    let path = "jsonpath={.status.containerStatuses[1].restartCount}";
    eventually("b is started again", || text(&engine.kubectl(&["get", "pod", "two", "-o", path])) == "1");
    eventually("b reaches a again", || says_there(&engine));
    stdout(&engine.kubectl(&["delete", "pod", "two", "--now"]));
    engine.stop();
}

/// The first address of a sandbox's range.
fn gateway(address: &str) -> String {
    let address: std::net::Ipv4Addr = address.parse().unwrap();
    std::net::Ipv4Addr::from((u32::from(address) & !0x3fff) + 1).to_string()
}

/// A program that runs in a sandbox until this is dropped.
pub struct Background(std::process::Child);

impl Background {
    fn start(engine: &Engine, name: &str, script: &str) -> Self {
        Self::wait(engine.command(&["exec", name, "--", "python3", "-c", script]))
    }

    pub fn start_in_pod(engine: &Engine, name: &str, script: &str) -> Self {
        let program = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
        let mut command = std::process::Command::new(program);
        command.arg("--kubeconfig").arg(engine.kubeconfig());
        command.args(["exec", name, "--", "python3", "-c", script]).stdout(std::process::Stdio::piped());
        Self::wait(command)
    }

    /// Until it says that it is up.
    fn wait(mut command: std::process::Command) -> Self {
        use std::io::Read;
        let mut child = command.spawn().unwrap();
        let mut said = [0; 2];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"up");
        Self(child)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
