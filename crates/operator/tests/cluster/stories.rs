//! The stories. Each leaves what later ones may look at; the namespace goes at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use asb_testing::World;
use asb_types::{Claim, Sandbox, Template, WarmPool, condition, key, name};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, LogParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{CONTROLLER, Cluster, NAMESPACE};

/// Storage of the node, for the volume of one Sandbox.
const STORAGE: &str = "on-the-node";

/// A container that counts its starts in the volume, and says on which kernel it runs.
const COUNT: &str =
    "echo started >>/data/starts; grep -c started /data/starts; dmesg | head -n 3; exec sleep 3600";

pub async fn sandbox_keeps_its_data_while_it_is_suspended(world: &World, runtime: Option<&str>) {
    let name = runtime.unwrap_or("runc");
    volume(world, name).await;
    world.create::<Sandbox>(sandbox_with_volume(name, runtime)).await;
    world.eventually::<Sandbox>(name, is_ready).await;
    let first = world.get::<Pod>(name).await.expect("the Pod is named like its Sandbox");
    let log = log_of(world, name, "1").await;
    assert_eq!(log.contains("gVisor"), runtime == Some("gvisor"), "{log}");

    world.merge::<Sandbox>(name, json!({"spec": {"operatingMode": "Suspended"}})).await;
    world.gone(&first).await;
    world.eventually::<Sandbox>(name, |sandbox| says(sandbox, condition::SUSPENDED)).await;
    world.merge::<Sandbox>(name, json!({"spec": {"operatingMode": "Running"}})).await;
    world.eventually::<Sandbox>(name, is_ready).await;
    log_of(world, name, "2").await;
}

/// Through the webhook: the API server calls it by the Service, and trusts the certificate that it made.
pub async fn manifests_of_the_older_version_work(cluster: &Cluster, world: &World) {
    let mut older = sandbox("older", None);
    older["apiVersion"] = json!("agents.x-k8s.io/v1alpha1");
    older["spec"]["replicas"] = json!(1);
    cluster.kubectl_apply(&world.namespace, &older);
    world.eventually::<Sandbox>("older", is_ready).await;
    let read = ["get", "--namespace", &world.namespace, "sandboxes.v1alpha1.agents.x-k8s.io", "older"];
    let replicas = cluster.kubectl(&[&read[..], &["--output=jsonpath={.spec.replicas}"]].concat());
    assert_eq!(replicas, "1");
}

pub async fn expired_sandbox_goes_with_everything_of_it(world: &World) {
    let mut short = sandbox("short", None);
    short["spec"]["service"] = json!(true);
    let sandbox: Sandbox = world.create(short).await;
    world.eventually::<Sandbox>("short", is_ready).await;
    let pod = world.get::<Pod>("short").await.expect("a Sandbox that is Ready has a Pod");
    let service = world.get::<Service>("short").await.expect("and the Service that was asked for");
    let soon = Timestamp::now() + Duration::from_secs(1);
    let end = json!({"spec": {"shutdownTime": soon.to_string(), "shutdownPolicy": "Delete"}});
    world.merge::<Sandbox>("short", end).await;
    world.gone(&sandbox).await;
    world.gone(&pod).await;
    world.gone(&service).await;
}

pub async fn template_gets_its_network_policy(world: &World) {
    world.create::<Template>(template("guarded")).await;
    let policy = name::network_policy("guarded");
    let created = world.eventually::<NetworkPolicy>(&policy, |_| true).await;
    let rules = json!({"ingress": [{}], "egress": []});
    world.merge::<Template>("guarded", json!({"spec": {"networkPolicy": rules}})).await;
    let open = |policy: &NetworkPolicy| json!(policy)["spec"]["ingress"] == json!([{}]);
    world.eventually::<NetworkPolicy>(&policy, open).await;
    world.merge::<Template>("guarded", json!({"spec": {"networkPolicyManagement": "Unmanaged"}})).await;
    world.gone(&created).await;
}

pub async fn pool_keeps_members_ready(world: &World) {
    world.create::<Template>(template("warm")).await;
    world
        .create::<WarmPool>(json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
            "metadata": {"name": "warm"},
            "spec": {"replicas": 2, "sandboxTemplateRef": {"name": "warm"}},
        }))
        .await;
    let ready =
        |count| move |pool: &WarmPool| pool.status.as_ref().is_some_and(|s| s.ready_replicas == count);
    world.eventually::<WarmPool>("warm", ready(2)).await;
    world.merge::<WarmPool>("warm", json!({"spec": {"replicas": 1}})).await;
    world.eventually::<WarmPool>("warm", ready(1)).await;
}

pub async fn claim_gets_a_warm_member_whose_pod_runs_on(world: &World) {
    let members = pods(world).await;
    world.create::<Claim>(claim("mine", "warm")).await;
    let bound: Claim = world.eventually("mine", claim_is_ready).await;
    let sandbox =
        bound.status.and_then(|status| status.sandbox).expect("a claim that is Ready is bound").name;
    assert!(members.contains_key(&sandbox), "{sandbox} was there before: {members:?}");
    assert_eq!(pods(world).await.get(&sandbox), members.get(&sandbox), "and its Pod ran on");
    world.eventually::<WarmPool>("warm", pool_has(1)).await;

    let soon = Timestamp::now() + Duration::from_secs(1);
    let end = json!({"spec": {"lifecycle": {"shutdownTime": soon.to_string(), "shutdownPolicy": "Delete"}}});
    let claim: Claim = world.merge("mine", end).await;
    let pod = world.get::<Pod>(&sandbox).await.expect("the Pod is there until the claim ends");
    let sandbox = world.get::<Sandbox>(&sandbox).await.expect("and so is the Sandbox");
    world.gone(&claim).await;
    world.gone(&sandbox).await;
    world.gone(&pod).await;
}

/// Made before the Sandbox, for example from a backup.
pub async fn sandbox_adopts_what_was_prepared_for_it(world: &World) {
    volume(world, "prepared").await;
    let metadata = |name: &str| json!({"name": name, "labels": {key::ADOPTABLE: "true"}});
    let claim = name::volume_claim("data", "prepared");
    let object = json!({"metadata": metadata(&claim), "spec": claim_spec()});
    world.create::<PersistentVolumeClaim>(object).await;
    let selector = json!({key::SANDBOX_NAME_HASH: name::name_hash("prepared")});
    let spec = json!({"clusterIP": "None", "selector": selector});
    world.create::<Service>(json!({"metadata": metadata("prepared"), "spec": spec})).await;
    let pod: Pod =
        world.create(json!({"metadata": metadata("prepared"), "spec": pod_spec("exec sleep 3600")})).await;
    let mut sandbox = sandbox_with_volume("prepared", None);
    sandbox["spec"]["service"] = json!(true);
    let sandbox: Sandbox = world.create(sandbox).await;
    world.eventually::<Sandbox>("prepared", is_ready).await;
    let uid = sandbox.metadata.uid.as_deref();
    let owner = |owners: &[OwnerReference]| owners.first().map(|owner| owner.uid.clone());
    let adopted: Pod = world.eventually("prepared", |pod: &Pod| !pod.owner_references().is_empty()).await;
    assert_eq!(owner(adopted.owner_references()).as_deref(), uid);
    assert_eq!(adopted.uid(), pod.uid(), "the Pod itself, not one in its place");
    let owned = |object: &PersistentVolumeClaim| owner(object.owner_references()).as_deref() == uid;
    world.eventually::<PersistentVolumeClaim>(&claim, owned).await;
    world
        .eventually::<Service>("prepared", |service| owner(service.owner_references()).as_deref() == uid)
        .await;
}

pub async fn upgrade_of_the_controller_restarts_no_sandbox(cluster: &Cluster, world: &World) {
    let running = pods(world).await;
    assert!(running.len() >= 3, "Sandboxes run: {running:?}");
    let image = format!("{CONTROLLER}={CONTROLLER}:next");
    cluster.kubectl(&["set", "image", "--namespace", NAMESPACE, &format!("deployment/{CONTROLLER}"), &image]);
    cluster.rolled_out(CONTROLLER).await;
    world.create::<Sandbox>(sandbox("after-the-upgrade", None)).await;
    world.eventually::<Sandbox>("after-the-upgrade", is_ready).await;
    assert_untouched(&running, world).await;
}

/// What the reference implementation left: references that name `v1alpha1`, a Pod that is named in an
/// annotation because it came from a pool under another name, and claims that note which member they take.
pub async fn sandboxes_of_the_reference_go_on(cluster: &Cluster, world: &World) {
    cluster.scale(0).await;
    volume(world, "plain").await;
    for (name, pod_name) in [("plain", "plain"), ("renamed", "pool-x7k2p")] {
        let mut sandbox = if name == "plain" { sandbox_with_volume(name, None) } else { sandbox(name, None) };
        sandbox["metadata"]["annotations"] = json!({key::POD_NAME: pod_name});
        sandbox["spec"]["service"] = json!(true);
        let spec = sandbox["spec"]["podTemplate"]["spec"].clone();
        let sandbox: Sandbox = world.create(sandbox).await;
        let metadata = |child: &str| {
            json!({
                "name": child,
                "labels": {key::SANDBOX_NAME_HASH: name::name_hash(name)},
                "ownerReferences": [{
                    "apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "Sandbox", "name": name,
                    "uid": sandbox.metadata.uid, "controller": true, "blockOwnerDeletion": true,
                }],
            })
        };
        let mut pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(pod_name), "spec": spec});
        if name == "plain" {
            let claim = name::volume_claim("data", name);
            let volume = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
            pod["spec"]["volumes"] = volume;
            let claim = json!({"metadata": metadata(&claim), "spec": claim_spec()});
            world.create::<PersistentVolumeClaim>(claim).await;
        }
        world.create::<Pod>(pod).await;
        let ready = |pod: &Pod| json!(pod)["status"]["containerStatuses"][0]["ready"] == true;
        world.eventually::<Pod>(pod_name, ready).await;
    }
    let members = world.api::<Sandbox>().list(&ListParams::default().labels(key::WARM_POOL_SANDBOX)).await;
    let member =
        members.expect("Sandboxes can be listed").items.first().expect("the pool is warm").name_any();
    for (name, noted) in [("noted", member.as_str()), ("lost", "deleted-meanwhile")] {
        let mut claim = claim(name, "warm");
        claim["metadata"]["annotations"] = json!({key::SANDBOX_NAME: noted});
        world.create::<Claim>(claim).await;
    }

    let running = pods(world).await;
    cluster.scale(1).await;
    let noted: Claim = world.eventually("noted", claim_is_ready).await;
    assert_eq!(noted.status.and_then(|status| status.sandbox).map(|sandbox| sandbox.name), Some(member));
    world.eventually::<Claim>("lost", claim_is_ready).await;
    for name in ["plain", "renamed"] {
        let sandbox: Sandbox = world.eventually(name, is_ready).await;
        assert!(!sandbox.status.unwrap_or_default().pod_ips.is_empty());
        world.eventually::<Service>(name, |_| true).await;
    }
    assert_untouched(&running, world).await;
}

/// Every Pod of a Sandbox, by its name: which one it is, and how often its containers started.
///
/// A Pod whose Sandbox is gone may still run: the garbage collector learns of new kinds only from time to time.
pub async fn pods(world: &World) -> BTreeMap<String, (Option<String>, Value)> {
    let sandboxes = world.api::<Sandbox>().list(&ListParams::default()).await;
    let living: BTreeSet<_> =
        sandboxes.expect("Sandboxes can be listed").items.iter().filter_map(ResourceExt::uid).collect();
    let pods = world.api::<Pod>().list(&ListParams::default()).await.expect("Pods can be listed");
    let lives = |pod: &Pod| pod.owner_references().iter().any(|owner| living.contains(&owner.uid));
    let entry = |pod: Pod| {
        let restarts = json!(pod)["status"]["containerStatuses"][0]["restartCount"].clone();
        (pod.name_any(), (pod.uid(), restarts))
    };
    pods.items.into_iter().filter(lives).map(entry).collect()
}

pub async fn assert_untouched(before: &BTreeMap<String, (Option<String>, Value)>, world: &World) {
    let now = pods(world).await;
    for (name, pod) in before {
        assert_eq!(now.get(name), Some(pod), "Pod {name} is the same and was not restarted");
    }
}

pub fn is_ready(sandbox: &Sandbox) -> bool {
    says(sandbox, condition::READY)
}

pub fn claim_is_ready(claim: &Claim) -> bool {
    let mut conditions = claim.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|found| found.type_ == condition::READY && found.status == "True")
}

pub fn pool_has(ready: i32) -> impl Fn(&WarmPool) -> bool {
    move |pool| pool.status.as_ref().is_some_and(|status| status.ready_replicas == ready)
}

fn says(sandbox: &Sandbox, kind: &str) -> bool {
    let status = sandbox.status.as_ref();
    status.is_some_and(|s| s.conditions.iter().any(|found| found.type_ == kind && found.status == "True"))
}

/// Waits until a line of the log is this one, and returns the log.
async fn log_of(world: &World, pod: &str, line: &str) -> String {
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let log = world.api::<Pod>().logs(pod, &LogParams::default()).await.unwrap_or_default();
        if log.lines().any(|found| found == line) && log.lines().count() > 1 {
            return log;
        }
        assert!(tokio::time::Instant::now() < until, "no line {line:?} in the log of {pod}: {log}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Storage for the volume of one Sandbox: nobody provisions any on this cluster.
async fn volume(world: &World, sandbox: &str) {
    let claim = name::volume_claim("data", sandbox);
    let volume = serde_json::from_value(json!({
        "metadata": {"name": format!("{}-{claim}", world.namespace)},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE,
            "hostPath": {"path": format!("/var/lib/volumes/{claim}"), "type": "DirectoryOrCreate"},
            "claimRef": {"namespace": world.namespace, "name": claim},
        },
    }));
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let created = volumes.create(&PostParams::default(), &volume.expect("a PersistentVolume")).await;
    created.expect("the volume is accepted");
}

fn claim_spec() -> Value {
    json!({
        "storageClassName": STORAGE, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    })
}

pub fn sandbox(name: &str, runtime: Option<&str>) -> Value {
    let mut spec = pod_spec("exec sleep 3600");
    if let Some(runtime) = runtime {
        spec["runtimeClassName"] = json!(runtime);
    }
    json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": spec}},
    })
}

fn sandbox_with_volume(name: &str, runtime: Option<&str>) -> Value {
    let mut sandbox = sandbox(name, runtime);
    let container = &mut sandbox["spec"]["podTemplate"]["spec"]["containers"][0];
    container["command"][2] = json!(COUNT);
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    sandbox["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": claim_spec()}]);
    sandbox
}

pub fn template(name: &str) -> Value {
    json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": pod_spec("exec sleep 3600")}},
    })
}

/// A pool of the template of its name.
pub fn pool(name: &str, replicas: usize) -> Value {
    json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": name}},
    })
}

pub fn claim(name: &str, pool: &str) -> Value {
    json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": name},
        "spec": {"warmPoolRef": {"name": pool}},
    })
}

fn pod_spec(command: &str) -> Value {
    json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "busybox:test", "command": ["sh", "-c", command]}],
    })
}
