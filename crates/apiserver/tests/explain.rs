//! `kubectl explain`: every kind says what its fields are for, however deep they are.

mod common;
use common::served::Served;
use common::*;

use serde_json::Value;

/// The description of a field in an OpenAPI document, as kubectl looks for it.
fn explained(schema: &Value, path: &str) -> String {
    let found = path.split('.').fold(schema, |at, name| {
        let at = if at["items"].is_object() { &at["items"] } else { at };
        &at["properties"][name]
    });
    found["description"].as_str().unwrap_or_default().to_owned()
}

async fn schema(world: &World, document: &str, model: &str) -> Value {
    let answer = world.get(&format!("/openapi/v3/{document}")).await;
    assert_eq!(answer.code, 200);
    answer.body["components"]["schemas"][model].clone()
}

const POD_FIELDS: [&str; 34] = [
    "containers.name",
    "containers.command",
    "containers.env.valueFrom.secretKeyRef.key",
    "containers.env.valueFrom.fieldRef.fieldPath",
    "containers.envFrom.prefix",
    "containers.livenessProbe.failureThreshold",
    "containers.readinessProbe.httpGet.path",
    "containers.startupProbe.grpc.service",
    "containers.lifecycle.preStop.exec.command",
    "containers.ports.containerPort",
    "containers.resources.limits",
    "containers.resources.requests",
    "containers.securityContext.capabilities.drop",
    "containers.securityContext.runAsUser",
    "containers.securityContext.seccompProfile.type",
    "containers.volumeMounts.subPath",
    "containers.terminationMessagePolicy",
    "initContainers.restartPolicy",
    "initContainers.livenessProbe.periodSeconds",
    "ephemeralContainers.targetContainerName",
    "volumes.emptyDir.sizeLimit",
    "volumes.configMap.items.path",
    "volumes.secret.defaultMode",
    "volumes.projected.sources.downwardAPI.items.fieldRef.fieldPath",
    "volumes.persistentVolumeClaim.claimName",
    "volumes.hostPath.type",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.operator",
    "affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution.podAffinityTerm.topologyKey",
    "tolerations.tolerationSeconds",
    "topologySpreadConstraints.labelSelector.matchLabels",
    "securityContext.fsGroup",
    "dnsConfig.options.name",
    "hostAliases.hostnames",
    "readinessGates.conditionType",
];

#[tokio::test]
async fn deep_fields_are_described_of_pods_and_where_our_kinds_embed_them() {
    let world = World::with_our_kinds().await;
    let pod = schema(&world, "api/v1", "io.k8s.api.core.v1.Pod").await;
    for field in POD_FIELDS {
        assert_ne!(explained(&pod, &format!("spec.{field}")), "", "pod.spec.{field}");
    }
    let sandbox = schema(&world, "apis/agents.x-k8s.io/v1beta1", "io.x-k8s.agents.v1beta1.Sandbox").await;
    for field in POD_FIELDS {
        assert_ne!(explained(&sandbox, &format!("spec.podTemplate.spec.{field}")), "", "sandbox: {field}");
    }
    let template = "io.x-k8s.agents.extensions.v1beta1.SandboxTemplate";
    let template = schema(&world, "apis/extensions.agents.x-k8s.io/v1beta1", template).await;
    for field in ["networkPolicy.egress.to.ipBlock.cidr", "volumeClaimTemplates.spec.resources.requests"] {
        assert_ne!(explained(&template, &format!("spec.{field}")), "", "sandboxtemplate: {field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explain_prints_what_a_field_is_for() {
    let served = Served::of(World::with_our_kinds().await).await;
    for (field, wanted) in [
        ("pod.spec.containers.livenessProbe.failureThreshold", "failures in a row"),
        ("sandbox.spec.podTemplate", "The Pod that the sandbox runs in."),
        ("sandbox.status.podIPs", "Addresses of the Pod"),
        ("sandboxclaim.spec.lifecycle.ttlSecondsAfterFinished", "Seconds from the end"),
        ("sandboxwarmpool", "claims get one at once"),
    ] {
        let shown = served.kubectl(&["explain", field]).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(wanted), "{field}: {shown}");
    }
    for kind in ["sandbox", "sandboxclaim", "sandboxtemplate", "sandboxwarmpool"] {
        for path in ["", ".spec", ".metadata"] {
            let shown = served.kubectl(&["explain", &format!("{kind}{path}")]);
            assert!(!shown.contains("<empty>"), "{kind}{path}: {shown}");
        }
    }
}
