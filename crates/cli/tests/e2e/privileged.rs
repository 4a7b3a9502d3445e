//! Privileged containers: run only where the operator allows it, with every right over what is their own.

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};
use crate::network::TRICKS;
use crate::pod::{apply, finish, get, pod, printed};

const NEST: &str = "mkdir -p /tmp/m && mount -t tmpfs none /tmp/m && umount /tmp/m && echo mounted; \
    unshare -Umpf --map-root-user --mount-proc readlink /proc/self || echo refused";

fn privileged() -> Value {
    json!({"securityContext": {"privileged": true}})
}

fn message(engine: &Engine, name: &str) -> String {
    get(engine, name)["status"]["message"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn privileged_containers_are_run_where_the_operator_allows_them_and_nowhere_else() {
    let mut engine = Engine::start_with(&["--allow-privileged"]);
    apply(&engine, &pod("more", NEST, privileged(), json!({})));
    assert_eq!(printed(&engine, "more"), "mounted\n1\n");
    let inside =
        |engine: &Engine, script: &str| text(&engine.asb(&["exec", "more", "--", "sh", "-c", script]));
    assert_eq!(inside(&engine, NEST), "mounted\n1\n");
    // What others have is as little as ever.
    apply(&engine, &pod("usual", NEST, json!({}), json!({})));
    let usual = printed(&engine, "usual");
    assert!(usual.contains("refused") && !usual.contains("mounted"), "{usual}");
    // Its packets are those that any sandbox may send.
    let said = stdout(&engine.asb(&["exec", "more", "--", "python3", "-c", TRICKS, "10.200.0.77"]));
    assert_eq!(said.lines().filter(|line| line.ends_with(" failed")).count(), 9, "{said}");

    let torn = json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}});
    let torn = engine.kubectl_apply(&pod("torn", "true", torn, json!({})).to_string());
    assert!(
        !torn.status.success() && text(&torn).contains("spec.containers[0].securityContext"),
        "{}",
        text(&torn)
    );

    engine.kill();
    engine.restart();
    assert_eq!(inside(&engine, "echo goes on"), "goes on\n", "what runs is the next engine's as it is");
    apply(&engine, &pod("later", NEST, privileged(), json!({})));
    eventually("it is refused by the field, with what would help", || {
        let message = message(&engine, "later");
        message.contains("spec.containers[0].securityContext.privileged: ")
            && message.contains("--allow-privileged")
    });
    finish(engine);
}

#[test]
fn privileged_container_shares_with_the_others_of_its_pod_what_containers_share() {
    let engine = Engine::start_with(&["--allow-privileged"]);
    let container = |name: &str, script: &str, security: Value| {
        json!({
            "name": name, "image": "host", "command": ["sh", "-c", format!("{script}; echo done; exec sleep 1000")],
            "securityContext": security, "volumeMounts": [{"name": "shared", "mountPath": "/s"}],
        })
    };
    let wait = "until test -e /s/word; do sleep 0.05; done; cat /s/word /dev/shm/word; mount -t tmpfs none /mnt || echo refused";
    let say = format!("{NEST}; echo segment > /dev/shm/word; echo volume > /s/word");
    let spec = json!({
        "terminationGracePeriodSeconds": 0, "volumes": [{"name": "shared", "emptyDir": {"medium": "Memory"}}],
        "containers": [container("more", &say, json!({"privileged": true})), container("usual", wait, json!({}))],
    });
    apply(&engine, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "two"}, "spec": spec}));
    let log = |container: &str| text(&engine.kubectl(&["logs", "two", "-c", container]));
    eventually("both are through", || ["more", "usual"].iter().all(|it| log(it).contains("done\n")));
    assert_eq!(log("more"), "mounted\n1\ndone\n");
    let usual = log("usual");
    assert!(usual.starts_with("volume\nsegment\n") && usual.contains("refused"), "{usual}");
    finish(engine);
}
