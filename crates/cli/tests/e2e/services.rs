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
