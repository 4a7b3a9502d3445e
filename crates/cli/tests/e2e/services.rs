//! Services with an address, as kubectl makes them and sandboxes use them.

use crate::engine::{Engine, eventually, stdout};
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
