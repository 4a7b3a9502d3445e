//! The generated files are current, and `kubectl` and `helm` make of them what we mean.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::*;
use crate::root;

/// A script of ours that prints what it built.
fn built(script: &str) -> PathBuf {
    let output = Command::new(root().join(script)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

fn objects_in(yaml: &str) -> BTreeMap<String, Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let name = |object: &Value| {
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        format!("{} {}/{}", text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]))
    };
    documents.into_iter().map(|object| (name(&object), object)).collect()
}

fn kustomize(folder: &str) -> BTreeMap<String, Value> {
    let kubectl = built("tools/kubernetes/build").join("kubectl");
    let output = Command::new(kubectl).arg("kustomize").arg(root().join(folder)).output().unwrap();
    assert!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
    objects_in(&String::from_utf8(output.stdout).unwrap())
}

fn helm(arguments: &[&str]) -> Output {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    let helm = HELM.get_or_init(|| built("tools/helm/build"));
    let chart = root().join("deploy/helm/agent-sandbox");
    Command::new(helm)
        .arg(arguments[0])
        .args(["asb", "."].iter().skip(usize::from(arguments[0] == "lint")))
        .args(&arguments[1..])
        .current_dir(chart)
        .output()
        .unwrap()
}

fn template(values: &[&str]) -> BTreeMap<String, Value> {
    let mut arguments = vec!["template", "--kube-version", "1.33.0"];
    arguments.extend(values.iter().flat_map(|value| ["--set", value]));
    let output = helm(&arguments);
    assert!(output.status.success(), "{values:?}: {}", String::from_utf8_lossy(&output.stderr));
    objects_in(&String::from_utf8(output.stdout).unwrap())
}

fn arguments(objects: &BTreeMap<String, Value>) -> Vec<String> {
    let deployment = &objects["Deployment agent-sandbox-system/agent-sandbox-controller"];
    serde_json::from_value(deployment["spec"]["template"]["spec"]["containers"][0]["args"].clone()).unwrap()
}

#[test]
fn generated_manifests_are_current() {
    for (file, text) in files().unwrap() {
        let found = std::fs::read_to_string(root().join(&file)).unwrap_or_default();
        assert!(found == text, "{file} is not current; run `cargo xtask deploy`");
    }
}

#[test]
fn kustomize_makes_of_the_parts_what_is_in_the_single_file() {
    let single = objects_in(&yaml(&everything()).unwrap());
    let parts = kustomize("deploy");
    assert_eq!(parts.keys().collect::<Vec<_>>(), single.keys().collect::<Vec<_>>());
    for (name, object) in &single {
        assert_eq!(&parts[name], object, "{name}");
    }
}

#[test]
fn the_two_steps_of_a_release_end_where_the_single_file_does() {
    let files = BTreeMap::from(release_files());
    let mut steps = objects_in(&yaml(&files["sandbox.yaml"]).unwrap());
    steps.extend(objects_in(&yaml(&files["extensions.yaml"]).unwrap()));
    assert_eq!(steps, objects_in(&yaml(&files["install.yaml"]).unwrap()));
    assert_eq!(files["install.yaml"], files["sandbox-with-extensions.yaml"]);
}

#[test]
fn the_flavour_of_one_version_has_nothing_of_the_webhook() {
    let objects = kustomize("deploy/overlays/v1beta1-only");
    assert!(!objects.keys().any(|name| name.contains("webhook")), "{:?}", objects.keys());
    assert_eq!(arguments(&objects), ["--leader-elect=true", "--enable-webhook=false", "--extensions"]);
}

#[test]
fn the_namespaced_flavour_has_rights_in_its_namespace_only() {
    let objects = kustomize("deploy/overlays/namespaced");
    let bindings: Vec<_> = objects.keys().filter(|name| name.starts_with("ClusterRoleBinding")).collect();
    // Definitions are in no namespace.
    let names = ["definitions", "webhook"].map(|name| format!("ClusterRoleBinding /{NAME}-{name}"));
    assert_eq!(bindings, names.iter().collect::<Vec<_>>());
    assert!(objects.contains_key("RoleBinding default/agent-sandbox-controller"));
    assert!(objects.contains_key("RoleBinding default/agent-sandbox-controller-extensions"));
    assert_eq!(arguments(&objects), ["--leader-elect=true", "--extensions", "--watch-namespaces=default"]);
}

#[test]
fn the_core_flavour_may_do_nothing_to_templates_pools_and_claims() {
    let objects = kustomize("deploy/overlays/core");
    assert!(!objects.contains_key("ClusterRole /agent-sandbox-controller-extensions"));
    assert_eq!(arguments(&objects), ["--leader-elect=true"]);
}

#[test]
fn no_right_is_a_wildcard() {
    for object in everything().iter().filter(|object| object["kind"].as_str().unwrap().ends_with("Role")) {
        assert!(!object["rules"].to_string().contains('*'), "{}", object["metadata"]["name"]);
    }
}

/// What both installations must agree on: kind and name of every object, and every right.
#[test]
fn the_chart_installs_what_the_manifests_install() {
    let manifests = kustomize("deploy");
    let chart = template(&["controller.extensions=true"]);
    let ours = |name: &&String| !name.starts_with("CustomResourceDefinition");
    assert_eq!(chart.keys().collect::<Vec<_>>(), manifests.keys().filter(ours).collect::<Vec<_>>());
    for (name, object) in &chart {
        for field in ["rules", "roleRef", "subjects"] {
            assert_eq!(object[field], manifests[name][field], "{field} of {name}");
        }
    }
    let pod = |objects: &BTreeMap<String, Value>| {
        let deployment = &objects["Deployment agent-sandbox-system/agent-sandbox-controller"];
        let spec = &deployment["spec"]["template"]["spec"];
        let container = &spec["containers"][0];
        let fields = ["image", "ports", "livenessProbe", "readinessProbe", "resources", "securityContext"];
        let container: Vec<_> = fields.iter().map(|field| container[field].clone()).collect();
        (container, spec["securityContext"].clone(), spec["volumes"].clone())
    };
    assert_eq!(pod(&chart), pod(&manifests));
    let router = |objects: &BTreeMap<String, Value>| {
        let pod = &objects["Deployment agent-sandbox-system/sandbox-router"]["spec"]["template"]["spec"];
        (pod["containers"].clone(), pod["securityContext"].clone(), pod["topologySpreadConstraints"].clone())
    };
    assert_eq!(router(&chart), router(&manifests));
    for kind in ["NetworkPolicy", "PodDisruptionBudget"] {
        let name = format!("{kind} agent-sandbox-system/sandbox-router");
        assert_eq!(chart[&name]["spec"], manifests[&name]["spec"], "{name}");
    }
}

#[test]
fn templates_let_the_router_in() {
    let objects = kustomize("deploy");
    let router = &objects["Deployment agent-sandbox-system/sandbox-router"];
    assert_eq!(router["spec"]["template"]["metadata"]["labels"]["app"], "sandbox-router");
    let service = &objects["Service agent-sandbox-system/sandbox-router-svc"];
    assert_eq!(service["spec"]["selector"], json!({"app": "sandbox-router"}));
    assert_eq!(service["spec"]["ports"], json!([{"name": "proxy", "port": 8080, "targetPort": "proxy"}]));
}

#[test]
fn the_router_asks_for_credentials_and_says_why_it_trusts_loopback() {
    let objects = kustomize("deploy");
    let pod = &objects["Deployment agent-sandbox-system/sandbox-router"]["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].to_string();
    assert!(
        arguments.contains("--authz-mode=tokenreview") && !arguments.contains("allow-all"),
        "{arguments}"
    );
    assert!(pod["hostNetwork"].is_null() && pod["containers"].as_array().unwrap().len() == 1);
    let text = yaml(&router::objects()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.contains("--authz-trust-loopback")).unwrap();
    assert!(lines[at - 1].trim_start().starts_with("# Only the kubelet's port-forward"), "{}", lines[at - 1]);
}

#[test]
fn the_router_can_be_left_out() {
    let objects = template(&["router.enabled=false"]);
    assert!(!objects.keys().any(|name| name.contains("sandbox-router")), "{:?}", objects.keys());
}

#[test]
fn the_chart_is_well_formed() {
    let output = helm(&["lint", "--strict", "--kube-version", "1.33.0"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let chart = std::fs::read_to_string(root().join("deploy/helm/agent-sandbox/Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&chart).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"), "the chart installs this version");
    let all = helm(&["template", "--include-crds", "--kube-version", "1.33.0"]);
    let all = objects_in(&String::from_utf8(all.stdout).unwrap());
    for crd in crds() {
        assert!(all.contains_key(&format!("CustomResourceDefinition /{}", asb_types::crd::name(&crd))));
    }
}

#[test]
fn flags_are_passed_only_when_their_value_is_set() {
    let plain = arguments(&template(&[]));
    assert_eq!(
        plain,
        [
            "--leader-elect=true",
            "--enable-webhook=true",
            "--webhook-service-name=agent-sandbox-webhook-service",
            "--webhook-namespace=agent-sandbox-system",
        ]
    );
    let set = arguments(&template(&[
        "controller.sandboxConcurrentWorkers=2000000",
        "controller.sandboxWarmPoolReadinessGracePeriod=90s",
        "controller.kubeApiQps=50",
        "controller.enableWarmPoolEviction=false",
        "controller.extraArgs={--zap-devel}",
    ]));
    assert_eq!(
        set[plain.len()..],
        [
            "--enable-warm-pool-eviction=false",
            "--kube-api-qps=50",
            "--sandbox-concurrent-workers=2000000",
            "--sandbox-warm-pool-readiness-grace-period=90s",
            "--zap-devel",
        ]
    );
}

#[test]
fn watched_namespaces_get_a_binding_each_and_no_other_rights() {
    let objects = template(&["watchNamespaces={red,blue}", "webhook.enabled=false"]);
    assert!(!objects.contains_key("Deployment agent-sandbox-system/sandbox-router"), "it would watch all");
    let bindings: Vec<_> = objects.keys().filter(|name| name.starts_with("ClusterRoleBinding")).collect();
    assert_eq!(bindings, ["ClusterRoleBinding /agent-sandbox-controller-definitions"]);
    assert!(objects.contains_key("RoleBinding red/agent-sandbox-controller"));
    assert!(objects.contains_key("RoleBinding blue/agent-sandbox-controller"));
    assert!(arguments(&objects).contains(&"--watch-namespaces=red,blue".to_owned()));
}

#[test]
fn monitoring_is_there_when_it_is_asked_for() {
    let objects = template(&["metrics.serviceMonitor.enabled=true", "metrics.prometheusRule.enabled=true"]);
    let rule = &objects["PrometheusRule agent-sandbox-system/agent-sandbox-controller"];
    assert_eq!(rule["spec"]["groups"][0]["rules"][0]["alert"], "AgentSandboxControllerMetricsTargetsDown");
    let monitor = &objects["ServiceMonitor agent-sandbox-system/agent-sandbox-controller"];
    assert_eq!(monitor["spec"]["endpoints"], json!([{"port": "metrics", "interval": "30s"}]));
}

#[test]
fn labels_of_the_selector_win_over_those_of_the_user() {
    let objects = template(&["podLabels.app\\.kubernetes\\.io/name=mine,podLabels.team=red"]);
    let deployment = &objects["Deployment agent-sandbox-system/agent-sandbox-controller"];
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/name"], "agent-sandbox");
    assert_eq!(labels["team"], "red");
}

#[test]
fn wrong_values_are_refused_by_name() {
    for (value, field) in [
        ("replicaCount=-1", "replicaCount"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("controller.sandboxConcurentWorkers=3", "controller"),
        ("controller.sandboxConcurrentWorkers=0", "sandboxConcurrentWorkers"),
        ("controller.sandboxWarmPoolReadinessGracePeriod=soon", "sandboxWarmPoolReadinessGracePeriod"),
        ("watchNamespaces={Red}", "watchNamespaces"),
        ("imagetag=1", "imagetag"),
        ("router.authz.mode=none", "mode"),
    ] {
        let output = helm(&["template", "--set", value]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(field), "{value}: {message}");
    }
}
