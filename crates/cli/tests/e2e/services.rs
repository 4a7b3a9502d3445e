//! Services with an address, as kubectl makes them and sandboxes use them.

use asb_testing::Kubernetes;
use serde_json::{Value, json};

use crate::engine::{Engine, eventually, kubectl, stdout, text};
use crate::network::{Background, POLICIES, PROBE, address, pod, with_engine};

/// Answers on two ports with the name of its host.
const LISTEN: &str = "import socket, threading\ndef run(port):\n  it = socket.create_server(('', port))\n  while True: it.accept()[0].sendall(socket.gethostname().encode())\nfor port in (8080, 9090): threading.Thread(target=run, args=(port,)).start()\nprint('up', flush=True)";

fn probe(engine: &Engine, from: &str, target: &str) -> String {
    let said = stdout(&engine.kubectl(&["exec", from, "--", "python3", "-c", PROBE, target]));
    said.trim().split_once(' ').unwrap().1.to_owned()
}

fn cluster_ip(engine: &Engine, name: &str) -> String {
    stdout(&engine.kubectl(&["get", "svc", name, "-o", "jsonpath={.spec.clusterIP}"]))
}

#[test]
fn a_pod_is_exposed_and_reached_by_the_name_of_its_service() {
    with_engine(|engine, _| {
        for name in ["client", "server", "other"] {
            stdout(&engine.kubectl_apply(&pod(name)));
        }
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=30s"]));
        let _server = Background::start_in_pod(engine, "server", LISTEN);
        let expose = ["expose", "pod", "server", "--name=front", "--port=80", "--target-port=web"];
        stdout(&engine.kubectl(&expose));
        let own = cluster_ip(engine, "front");
        let shown = stdout(&engine.kubectl(&["get", "svc"]));
        assert!(shown.contains(&own) && shown.contains("80/TCP"), "{shown}");
        let named = "import socket; print(socket.gethostbyname('front'))";
        eventually("its name stands for its address", || {
            let said = engine.kubectl(&["exec", "client", "--", "python3", "-c", named]);
            String::from_utf8_lossy(&said.stdout).trim() == own
        });
        assert_eq!(probe(engine, "client", "front:80"), "refused", "closed by default");
        stdout(&engine.kubectl_apply(POLICIES));
        eventually("policies open it", || probe(engine, "client", "front:80") == "answered server");
        assert_eq!(probe(engine, "other", "front:80"), "refused", "to whom they are for");
        assert_eq!(probe(engine, "client", "front:9090"), "refused", "another port");
        eventually("it reaches itself", || probe(engine, "server", "front:80") == "answered server");

        engine.kill();
        assert_eq!(cluster_ip_after(engine, "front"), own);
        eventually("the next engine leads there too", || {
            probe(engine, "client", "front:80") == "answered server"
        });

        let before = address(engine, "server");
        stdout(&engine.kubectl(&["delete", "pod", "server", "--now"]));
        eventually("nobody is behind it", || probe(engine, "client", "front:80") == "refused");
        stdout(&engine.kubectl_apply(&pod("server")));
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "server", "--timeout=30s"]));
        assert_ne!(address(engine, "server"), before);
        let _server = Background::start_in_pod(engine, "server", LISTEN);
        eventually("another Pod is", || probe(engine, "client", "front:80") == "answered server");
        stdout(&engine.kubectl(&["delete", "svc", "front"]));
        eventually("without a Service nothing is", || {
            probe(engine, "client", &format!("{own}:80")) == "refused"
        });
        stdout(&engine.kubectl(&["delete", "pods", "--all", "--now"]));
    });
}

/// The address of a Service after the engine was started again.
fn cluster_ip_after(engine: &mut Engine, name: &str) -> String {
    engine.restart();
    cluster_ip(engine, name)
}

#[test]
fn a_service_leads_to_ready_pods_only() {
    with_engine(|engine, _| {
        let ready = "apiVersion: v1\nkind: Pod\nmetadata: {name: server, labels: {app: server}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: host\n    command: [sleep, \"1000\"]\n    ports: [{containerPort: 8080, name: web}]\n    readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1, failureThreshold: 1}\n";
        stdout(&engine.kubectl_apply(&pod("client")));
        stdout(&engine.kubectl_apply(ready));
        stdout(&engine.kubectl_apply(POLICIES));
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: front}\nspec:\n  selector: {app: server}\n  ports: [{port: 80, targetPort: 8080}]\n";
        stdout(&engine.kubectl_apply(service));
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "client", "--timeout=30s"]));
        let running = ["wait", "--for=jsonpath={.status.phase}=Running", "pod", "server", "--timeout=30s"];
        stdout(&engine.kubectl(&running));
        let _server = Background::start_in_pod(engine, "server", LISTEN);
        let own = address(engine, "server");
        eventually("the Pod itself is reached", || {
            probe(engine, "client", &format!("{own}:8080")) == "answered server"
        });
        assert_eq!(probe(engine, "client", "front:80"), "refused", "but not through the Service");
        stdout(&engine.kubectl(&["exec", "server", "--", "touch", "/tmp/ready"]));
        eventually("until it is ready", || probe(engine, "client", "front:80") == "answered server");
        stdout(&engine.kubectl(&["exec", "server", "--", "rm", "/tmp/ready"]));
        eventually("and no longer", || probe(engine, "client", "front:80") == "refused");
        stdout(&engine.kubectl(&["delete", "pods", "--all", "--now"]));
    });
}

#[test]
fn kubectl_shows_who_is_behind_a_service() {
    let engine = Engine::start();
    stdout(&engine.kubectl_apply(&pod("server")));
    stdout(&engine.kubectl(&["expose", "pod", "server", "--name=front", "--port=80", "--target-port=web"]));
    stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "server", "--timeout=30s"]));
    let behind = format!("{}:8080", address(&engine, "server"));
    let shows = |args: &[&str], wanted: &str| {
        eventually(&format!("kubectl {args:?} shows {wanted}"), || {
            String::from_utf8_lossy(&engine.kubectl(args).stdout).contains(wanted)
        });
    };
    shows(&["get", "endpoints", "front"], &behind);
    shows(&["get", "endpointslices"], &address(&engine, "server"));
    shows(&["describe", "service", "front"], &format!("{behind}\n"));
    stdout(&engine.kubectl(&["delete", "pod", "server", "--now"]));
    shows(&["get", "endpoints", "front"], "<none>");
    stdout(&engine.kubectl(&["delete", "service", "front"]));
    eventually("nothing is left of it", || {
        let left = engine.kubectl(&["get", "endpoints,endpointslices", "-o", "name"]);
        left.status.success() && left.stdout.is_empty()
    });
    engine.stop();
}

/// Asks the resolver for records of a type and prints them, one to a line.
const ASK: &str = r#"
import socket, struct, sys
name, kind = sys.argv[1], {"A": 1, "CNAME": 5, "PTR": 12, "AAAA": 28, "SRV": 33}[sys.argv[2]]
server = [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")][0]
question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0" + struct.pack("!HH", kind, 1)
it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
it.settimeout(10)
it.sendto(struct.pack("!6H", 7, 256, 1, 0, 0, 0) + question, (server, 53))
got = it.recv(4096)
def read(at):
    parts = []
    while got[at]:
        if got[at] >= 192: return ".".join(parts + [read((got[at] & 63) << 8 | got[at + 1])[0]]), at + 2
        parts.append(got[at + 1 : at + 1 + got[at]].decode())
        at += 1 + got[at]
    return ".".join(parts), at + 1
at, lines = 12 + len(question), []
for _ in range(struct.unpack("!H", got[6:8])[0]):
    at = read(at)[1]
    kind, length = struct.unpack("!H6xH", got[at : at + 10])
    at += 10
    data = got[at : at + length]
    if kind == 33: lines.append("%d %s" % (struct.unpack("!H", data[4:6])[0], read(at + 6)[0]))
    elif kind in (5, 12): lines.append(read(at)[0])
    else: lines.append(socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, data))
    at += length
print("\n".join(sorted(lines)))
"#;

fn ask(engine: &Engine, name: &str, kind: &str) -> String {
    stdout(&engine.kubectl(&["exec", "client", "--", "python3", "-c", ASK, name, kind])).trim().to_owned()
}

#[test]
fn services_are_told_by_variables_and_found_by_port_and_by_address() {
    with_engine(|engine, _| {
        let services = json!([
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "my-front"}, "spec": {
                "selector": {"app": "server"},
                "ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "log", "port": 53, "protocol": "UDP"}],
            }},
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "each"}, "spec": {
                "clusterIP": "None", "selector": {"app": "server"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}],
            }},
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "alias"}, "spec": {
                "type": "ExternalName", "externalName": "my-front.default.svc.cluster.local",
            }},
        ]);
        for service in services.as_array().unwrap() {
            stdout(&engine.kubectl_apply(&service.to_string()));
        }
        let own = cluster_ip(engine, "my-front");
        let more = "  hostname: first\n  subdomain: each\n  enableServiceLinks: false\n";
        stdout(&engine.kubectl_apply(&(pod("server") + more)));
        stdout(&engine.kubectl_apply(&pod("client")));
        stdout(&engine.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=30s"]));
        let variables = |name: &str| {
            let env = stdout(&engine.kubectl(&["exec", name, "--", "env"]));
            let mut lines: Vec<_> =
                env.lines().filter(|line| line.contains("FRONT")).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let expected = format!(
            "MY_FRONT_PORT=tcp://{own}:80 MY_FRONT_PORT_53_UDP=udp://{own}:53 MY_FRONT_PORT_53_UDP_ADDR={own} \
             MY_FRONT_PORT_53_UDP_PORT=53 MY_FRONT_PORT_53_UDP_PROTO=udp MY_FRONT_PORT_80_TCP=tcp://{own}:80 \
             MY_FRONT_PORT_80_TCP_ADDR={own} MY_FRONT_PORT_80_TCP_PORT=80 MY_FRONT_PORT_80_TCP_PROTO=tcp \
             MY_FRONT_SERVICE_HOST={own} MY_FRONT_SERVICE_PORT=80 MY_FRONT_SERVICE_PORT_HTTP=80 MY_FRONT_SERVICE_PORT_LOG=53"
        );
        assert_eq!(variables("client").join(" "), expected);
        assert_eq!(variables("server"), [""; 0], "who does not want to be told is not");

        let zone = "default.svc.cluster.local";
        let address = address(engine, "server");
        let reverse = |address: &str| {
            let parts: Vec<_> = address.rsplit('.').collect();
            ask(engine, &format!("{}.in-addr.arpa", parts.join(".")), "PTR")
        };
        eventually("ports are found by name", || {
            ask(engine, &format!("_http._tcp.my-front.{zone}"), "SRV") == format!("80 my-front.{zone}")
        });
        eventually("those of a headless Service at its Pods", || {
            ask(engine, &format!("_http._tcp.each.{zone}"), "SRV") == format!("8080 first.each.{zone}")
        });
        assert_eq!(ask(engine, &format!("first.each.{zone}"), "A"), address);
        assert_eq!(reverse(&own), format!("my-front.{zone}"));
        assert!(reverse(&address).contains(&format!("first.each.{zone}")), "{}", reverse(&address));
        let alias = ask(engine, &format!("alias.{zone}"), "A");
        assert_eq!(alias, format!("{own}\nmy-front.{zone}"));
        let hosts = stdout(&engine.kubectl(&["exec", "server", "--", "cat", "/etc/hosts"]));
        assert!(hosts.contains("fe00::2\tip6-allrouters\n"), "{hosts}");
        assert!(hosts.contains(&format!("{address}\tfirst.each.{zone}\tfirst\n")), "{hosts}");
        let pod: Value =
            serde_json::from_str(&stdout(&engine.kubectl(&["get", "pod", "server", "-o", "json"]))).unwrap();
        for address in pod["status"]["podIPs"].as_array().unwrap() {
            let line = format!("{}\tfirst.each", address["ip"].as_str().unwrap());
            assert!(hosts.contains(&line), "{hosts} has {line}");
        }
        stdout(&engine.kubectl(&["delete", "pods", "--all", "--now"]));
    });
}

/// What a real kube-apiserver and ours say to the same requests. `R` stands for the addresses that each has to give.
#[test]
fn both_api_servers_give_and_refuse_addresses_alike() {
    let kubernetes = Kubernetes::start();
    let engine = Engine::start();
    let theirs = answers(&kubernetes.kubeconfig, "10.96");
    let ours = answers(&engine.kubeconfig(), "10.127");
    for (theirs, ours) in theirs.iter().zip(&ours) {
        assert_eq!(ours, theirs);
    }
    assert!(theirs.iter().any(|it| it.contains("provided IP is already allocated")), "{theirs:?}");
    engine.stop();
}

/// The answer to each request, in turn.
fn answers(kubeconfig: &std::path::Path, range: &str) -> Vec<String> {
    let call = |args: &[&str], input: &Value| {
        let input = input.to_string().replace("R.", &format!("{range}."));
        text(&kubectl(kubeconfig, args, &input)).replace(&format!("{range}."), "R.")
    };
    let service = |name: &str, spec: &Value| {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": "web"}]},
        });
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        object
    };
    let create = |(name, spec): &(&str, Value)| call(&["create", "-f", "-"], &service(name, spec));
    let patch = |(name, spec): &(&str, Value)| {
        let patch = json!({"spec": spec}).to_string().replace("R.", &format!("{range}."));
        call(&["patch", "svc", name, "--type=merge", "-p", &patch], &Value::Null)
    };
    let shown = |name: &&str| {
        let said = stdout(&kubectl(kubeconfig, &["get", "svc", name, "-o", "json"], ""));
        let mut spec = serde_json::from_str::<Value>(&said).unwrap()["spec"].take();
        for field in ["clusterIP", "clusterIPs"] {
            // Which one of the range it is, is chance.
            if spec[field].to_string().contains(&format!("{range}.")) {
                spec[field] = json!("R");
            }
        }
        spec.to_string()
    };
    let mut said: Vec<_> = cases().iter().map(create).collect();
    said.extend(["plain", "prefer", "sticky", "external", "headless"].iter().map(shown));
    said.extend(changes().iter().map(patch));
    said.push(shown(&"fixed"));
    said.push(patch(&("fixed", json!({"type": "ClusterIP", "externalName": null}))));
    said.push(shown(&"fixed"));
    said.push(call(&["replace", "-f", "-"], &service("plain", &json!({"ports": [{"port": 81}]}))));
    said
}

fn cases() -> Vec<(&'static str, Value)> {
    vec![
        ("plain", json!({})),
        ("fixed", json!({"clusterIP": "R.0.10"})),
        ("x", json!({"clusterIP": "R.0.10"})),
        ("x", json!({"clusterIP": "10.9.9.9"})),
        ("x", json!({"clusterIP": "nonsense"})),
        ("x", json!({"clusterIP": "fd00::1"})),
        ("x", json!({"clusterIPs": ["R.0.9"]})),
        ("x", json!({"clusterIP": "R.0.9", "clusterIPs": ["R.0.8"]})),
        ("x", json!({"clusterIP": "R.0.9", "clusterIPs": ["R.0.9", "R.0.8"]})),
        ("x", json!({"ipFamilyPolicy": "RequireDualStack"})),
        ("x", json!({"ipFamilies": ["IPv6"]})),
        ("prefer", json!({"ipFamilyPolicy": "PreferDualStack"})),
        ("x", json!({"type": "Other"})),
        ("x", json!({"sessionAffinity": "Other"})),
        ("sticky", json!({"sessionAffinity": "ClientIP"})),
        ("x", json!({"ports": [{"port": 1}, {"port": 2}]})),
        ("x", json!({"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "a"}]})),
        ("x", json!({"ports": [{"port": 1, "protocol": "ICMP"}]})),
        ("x", json!({"ports": [{"port": 70000}]})),
        ("x", json!({"ports": [{"port": 1, "targetPort": 70000}]})),
        ("x", json!({"ports": [{"port": 1, "targetPort": "NOT_A_PORT"}]})),
        ("x", json!({"ports": []})),
        ("x", json!({"type": "ExternalName"})),
        ("x", json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": "R.0.77"})),
        ("external", json!({"type": "ExternalName", "externalName": "example.com"})),
        ("headless", json!({"clusterIP": "None"})),
    ]
}

fn changes() -> Vec<(&'static str, Value)> {
    vec![
        ("fixed", json!({"clusterIP": "R.0.11"})),
        ("fixed", json!({"clusterIP": "None"})),
        ("fixed", json!({"clusterIP": null, "clusterIPs": null, "sessionAffinity": "ClientIP"})),
        ("headless", json!({"clusterIP": "R.0.30"})),
        ("fixed", json!({"type": "ExternalName", "externalName": "example.com", "sessionAffinity": "None"})),
    ]
}
