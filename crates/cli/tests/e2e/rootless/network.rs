//! The network of an ordinary user's sandboxes, on a machine of its own with a world outside it. What leads outside is a
//! program of the user's, which must not lead to the machine.

use asb_network::testing::{MACHINE, METADATA, Outside, PRIVATE, PUBLIC, on_a_machine, serve};
use std::net::Ipv4Addr;

use super::account::Account;
use crate::engine::stdout;

/// Connects to every address that follows, and prints for each what became of it.
const CONNECT: &str = r#"
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 2) as it: print(target, "answered", it.recv(64).decode())
    except OSError as error: print(target, "not")
"#;

/// Everything is allowed that a policy can allow.
const OPEN: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open}
spec:
  podSelector: {}
  policyTypes: [Egress, Ingress]
  egress: [{}]
  ingress: [{}]
"#;

/// What became of connecting from a sandbox to each of these.
fn connect(user: &Account, from: &str, targets: &[&str]) -> String {
    stdout(&user.asb(&[&["exec", from, "--", "python3", "-c", CONNECT], targets].concat()))
}

fn address(user: &Account, name: &str) -> String {
    stdout(&user.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.podIP}"], ""))
}

/// The story of a user who has one program that leads outside.
fn only_outside(hidden: &'static str, subordinate: bool) {
    on_a_machine(|outside: &Outside| {
        let _public = outside.serve(PUBLIC, 80);
        let _private = outside.serve(PRIVATE, 80);
        let _metadata = outside.serve(METADATA, 80);
        let (_everywhere, _loopback) = (serve(Ipv4Addr::UNSPECIFIED, 8080), serve(Ipv4Addr::LOCALHOST, 9090));
        let user = Account::without(hidden, subordinate);
        for name in ["a", "b"] {
            stdout(&user.asb(&["run", "--detach", "--name", name]));
        }
        let b = format!("{}:8888", address(&user, "b"));
        let public = format!("{PUBLIC}:80");
        let through = format!("{public} answered {MACHINE}\n");
        // The program that leads outside starts beside the sandbox, and may answer a moment later.
        let leads_outside = |from: &str, what: &str| {
            crate::engine::eventually(what, || connect(&user, from, &[&public]) == through);
        };
        leads_outside("a", "a sandbox connects with the machine's address");

        // The machine by its addresses, and by those that ways outside give to its loopback interface.
        let machine: Vec<String> =
            [MACHINE, Ipv4Addr::LOCALHOST, [10, 0, 2, 2].into(), [192, 0, 2, 1].into()]
                .iter()
                .flat_map(|address| [format!("{address}:8080"), format!("{address}:9090")])
                .collect();
        let others = [format!("{PRIVATE}:80"), format!("{METADATA}:80"), b.clone()];
        let closed: Vec<_> = machine.iter().chain(&others).map(String::as_str).collect();
        let said = connect(&user, "a", &closed);
        assert!(!said.contains("answered"), "{said}");

        stdout(&user.kubectl(&["apply", "-f", "-"], OPEN));
        // Started by the first request, and reached by whoever may.
        stdout(&user.asb(&["exec", "b", "--", "/.asb/sandboxd", "--port", "8888", "--detach"]));
        crate::engine::eventually("the policy is in force", || {
            connect(&user, "a", &[&format!("{PRIVATE}:80")]).contains("answered")
        });
        let machine: Vec<_> = machine.iter().map(String::as_str).collect();
        let said = connect(&user, "a", &machine);
        assert!(!said.contains("answered"), "no policy opens the machine: {said}");
        let name = stdout(&user.asb(&["exec", "a", "--", "getent", "ahostsv4", "b"]));
        assert!(name.contains(&address(&user, "b")), "{name}");

        user.kill_engine();
        stdout(&user.asb(&["up", "--detach"]));
        leads_outside("a", "a sandbox connects after another engine came");
        user.kill_outside();
        stdout(&user.asb(&["run", "--detach", "--name", "c"]));
        leads_outside("c", "a sandbox connects by the next program that leads outside");
        let said = connect(&user, "c", &machine);
        assert!(!said.contains("answered"), "{said}");
        user.finish();
    });
}

#[test]
fn pasta_leads_outside_and_not_to_the_machine() {
    only_outside("/usr/bin/slirp4netns", true);
}

#[test]
fn slirp4netns_leads_outside_and_not_to_the_machine() {
    only_outside("/usr/bin/pasta", false);
}

#[test]
fn without_a_way_outside_sandboxes_still_reach_each_other() {
    on_a_machine(|outside| {
        let _public = outside.serve(PUBLIC, 80);
        let user = Account::without("/usr/bin/pasta /usr/bin/slirp4netns", true);
        let told = stdout(&user.asb(&["doctor"]));
        assert!(told.contains("nothing outside") && told.contains("install the package `passt`"), "{told}");
        for name in ["a", "b"] {
            stdout(&user.asb(&["run", "--detach", "--name", name]));
        }
        stdout(&user.asb(&["exec", "b", "--", "/.asb/sandboxd", "--port", "8888", "--detach"]));
        stdout(&user.kubectl(&["apply", "-f", "-"], OPEN));
        let listing = "import socket,sys; socket.create_connection((sys.argv[1], 8888), 2)";
        let b = address(&user, "b");
        crate::engine::eventually("one reaches the other", || {
            user.asb(&["exec", "a", "--", "python3", "-c", listing, &b]).status.success()
        });
        let message = r#"jsonpath={.items[0].status.conditions[?(@.type=="NetworkUnavailable")].message}"#;
        let node = stdout(&user.kubectl(&["get", "nodes", "-o", message], ""));
        assert!(node.contains("nothing leads outside"), "{node}");
        let said = connect(&user, "a", &[&format!("{PUBLIC}:80")]);
        assert!(said.ends_with("not\n"), "{said}");
        user.finish();
    });
}
