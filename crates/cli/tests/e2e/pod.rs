//! What a Pod is given: variables and volumes from ConfigMaps, Secrets and the Pod itself.

use serde_json::{Value, json};

use crate::engine::{Engine, eventually, stdout, text};

fn apply(engine: &Engine, object: &Value) {
    stdout(&engine.kubectl_apply(&object.to_string()));
}

fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

/// A Pod that runs a script and then stays.
fn pod(name: &str, script: &str, container: Value, mut spec: Value) -> Value {
    let mut main = json!({"name": "main", "image": "host", "command": ["sh", "-c", format!("{script}; echo done; exec sleep 1000")]});
    main.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    spec["containers"] = json!([main]);
    let metadata = json!({"name": name, "labels": {"app": "web"}, "annotations": {"note": "hi"}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn get(engine: &Engine, name: &str) -> Value {
    serde_json::from_str(&stdout(&engine.kubectl(&["get", "pod", name, "-o", "json"]))).unwrap()
}

/// What a Pod's script printed, once it is through.
fn printed(engine: &Engine, name: &str) -> String {
    let log = || text(&engine.kubectl(&["logs", name]));
    eventually(&format!("the script of {name} is through"), || log().lines().any(|line| line == "done"));
    log().replace("done\n", "")
}

/// Removes the Pods and stops the engine, which must leave nothing.
fn finish(engine: Engine) {
    stdout(&engine.kubectl(&["delete", "pod", "--all", "--now"]));
    engine.stop();
}

#[test]
fn variables_come_from_objects_and_from_the_pod_itself() {
    let engine = Engine::start();
    apply(&engine, &config_map("map", &json!({"COLOUR": "red", "SIZE": "7", "1bad": "x"})));
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let container = json!({
        "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
        "envFrom": [{"configMapRef": {"name": "map"}}, {"prefix": "S_", "secretRef": {"name": "later"}},
            {"configMapRef": {"name": "none", "optional": true}}],
        "env": [
            {"name": "SIZE", "value": "$(SIZE)-$(COLOUR)"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "later", "key": "token"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "none", "optional": true}}},
            field("NAME", "metadata.name"), field("APP", "metadata.labels['app']"), field("IP", "status.podIP"),
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        ],
    });
    let script = "echo $SIZE $KEY $S_token ${NONE-unset} $NAME $APP $MEMORY $CPU; echo $IP";
    apply(&engine, &pod("env", script, container, json!({})));
    let waiting = || get(&engine, "env")["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    eventually("the Pod waits for its Secret", || waiting()["reason"] == "CreateContainerConfigError");
    assert_eq!(waiting()["message"], "secret \"later\" not found");
    assert!(text(&engine.kubectl(&["describe", "pod", "env"])).contains("Error: secret \"later\" not found"));
    apply(&engine, &secret("later", &json!({"other": "x"})));
    eventually("it says which key is missing", || {
        waiting()["message"] == "couldn't find key token in Secret default/later"
    });
    apply(&engine, &secret("later", &json!({"token": "hunter2"})));
    let (said, pod) = (printed(&engine, "env"), get(&engine, "env"));
    let address = pod["status"]["podIP"].as_str().unwrap();
    assert_eq!(said, format!("7-red hunter2 hunter2 unset env web 64 500\n{address}\n"));
    eventually("the key that is no name is told", || {
        text(&engine.kubectl(&["get", "events"]))
            .contains("Keys [1bad] from the EnvFrom configMap default/map")
    });
    finish(engine);
}
