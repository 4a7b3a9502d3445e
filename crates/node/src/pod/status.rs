//! From what was seen of its containers to the status of a Pod, as the kubelet writes it. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::{Value, json};

use super::container::{Role, Slot};
use super::plan::{Doing, Finished, Outcome, Seen};
use super::spec::Refusal;
use crate::disk::{self, EVICTED};

/// The machine, as its Pods are told.
pub const HOST_ADDRESS: &str = "127.0.0.1";

/// Conditions that are ours to write.
const OURS: [&str; 6] =
    ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", DISRUPTION];
/// There only when the Pod was evicted for the sake of others.
const DISRUPTION: &str = "DisruptionTarget";
const BY_KUBELET: &str = "TerminationByKubelet";

/// All that is known of a Pod.
pub struct Facts<'a> {
    pub pod: &'a Pod,
    /// The conditions as last told, or as an earlier engine left them.
    pub conditions: &'a [Value],
    /// In the order of [`Slot::with_ephemeral`].
    pub seen: &'a [Seen],
    pub outcome: Option<Outcome>,
    /// Why the Pod is refused, if it is.
    pub refusal: Option<&'a Refusal>,
    pub address: Option<Ipv4Addr>,
    pub address6: Option<Ipv6Addr>,
    /// When the Pod was first looked at.
    pub since: SystemTime,
    pub now: SystemTime,
}

/// A container with what is known of it.
#[derive(Clone, Copy)]
struct One<'a> {
    slot: Slot,
    role: Role,
    name: &'a str,
    seen: &'a Seen,
}

/// The whole status of a Pod, for a merge patch.
pub fn status(facts: &Facts<'_>) -> Value {
    let pod = facts.pod;
    let all: Vec<_> = Slot::with_ephemeral(pod)
        .into_iter()
        .zip(facts.seen)
        .map(|(slot, seen)| One { slot, role: slot.role(pod), name: slot.name(pod), seen })
        .collect();
    let phase = phase(facts.outcome, &all);
    let mut status = json!({
        "phase": phase,
        "reason": null,
        "message": null,
        "startTime": seconds(facts.since),
        "hostIP": HOST_ADDRESS,
        "hostIPs": [{"ip": HOST_ADDRESS}],
        "conditions": conditions(facts, &all, phase),
    });
    if let Some(address) = facts.address {
        status["podIP"] = json!(address);
        let all = std::iter::once(IpAddr::from(address)).chain(facts.address6.map(IpAddr::from));
        status["podIPs"] = all.map(|ip| json!({"ip": ip})).collect();
    }
    if let Some(refusal) = facts.refusal {
        status["reason"] = json!(refusal.reason);
        status["message"] = json!(refusal.message);
    } else if facts.outcome == Some(Outcome::DeadlineExceeded) {
        status["reason"] = json!("DeadlineExceeded");
        status["message"] = json!("Pod was active on the node longer than the specified deadline");
    }
    // A Pod that was refused before anything ran has no containers to tell of.
    if facts.refusal.is_some() && !all.iter().any(|one| one.seen.begun()) {
        return status;
    }
    let of = |wanted: fn(Slot) -> bool| -> Vec<_> {
        let some = all.iter().filter(|one| wanted(one.slot));
        some.map(|one| container_status(pod, *one, has_inits(&all))).collect()
    };
    status["containerStatuses"] = json!(of(|slot| matches!(slot, Slot::Main(_))));
    if has_inits(&all) {
        status["initContainerStatuses"] = json!(of(|slot| matches!(slot, Slot::Init(_))));
    }
    let added = of(|slot| matches!(slot, Slot::Ephemeral(_)));
    if !added.is_empty() {
        status["ephemeralContainerStatuses"] = json!(added);
    }
    status
}

fn has_inits(all: &[One<'_>]) -> bool {
    all.iter().any(|one| matches!(one.role, Role::Init | Role::Sidecar))
}

fn phase(outcome: Option<Outcome>, all: &[One<'_>]) -> &'static str {
    let runs = all.iter().any(|one| matches!(one.seen.doing, Doing::Running(_)));
    match outcome {
        Some(Outcome::Succeeded) if !runs => "Succeeded",
        Some(Outcome::Failed | Outcome::DeadlineExceeded | Outcome::Refused) if !runs => "Failed",
        // What is on its way out still runs.
        Some(_) => "Running",
        None => {
            let mut mains = all.iter().filter(|one| one.role == Role::Main);
            if incomplete(all).is_empty() && mains.all(|one| has_run(one.seen)) {
                "Running"
            } else {
                "Pending"
            }
        }
    }
}

/// Whether an instance of it is or was there.
fn has_run(seen: &Seen) -> bool {
    match &seen.doing {
        Doing::Running(it) => it.greeted || seen.last.is_some(),
        Doing::Ended(_) => true,
        Doing::Absent | Doing::Starting => seen.last.is_some(),
    }
}

/// Containers that main ones wait for, until the first of those has begun.
fn incomplete<'a, 'b>(all: &'a [One<'b>]) -> Vec<&'a One<'b>> {
    let initialized = all.iter().any(|one| one.role == Role::Main && one.seen.joined());
    let waits = |one: &&One<'_>| match one.role {
        Role::Main | Role::Ephemeral => false,
        Role::Init => !one.seen.is_through(),
        Role::Sidecar => !one.seen.has_started(),
    };
    all.iter().filter(|_| !initialized).filter(waits).collect()
}

fn conditions(facts: &Facts<'_>, all: &[One<'_>], phase: &str) -> Vec<Value> {
    // In the kubelet's words, which others look for.
    let names = |what: &str, some: &[&One<'_>]| {
        let names: Vec<_> = some.iter().map(|one| one.name).collect();
        format!("containers with {what} status: [{}]", names.join(" "))
    };
    let condition = |kind: &str, holds: bool, problem: Option<(&str, String)>| {
        let status = if holds { "True" } else { "False" };
        let known = facts.conditions.iter().find(|it| it["type"] == kind && it["status"] == status);
        let since = known.map(|it| it["lastTransitionTime"].clone()).filter(|time| !time.is_null());
        let mut condition = json!({"type": kind, "status": status});
        condition["lastTransitionTime"] = since.unwrap_or_else(|| json!(seconds(facts.now)));
        if let Some((reason, message)) = problem.filter(|_| !holds) {
            condition["reason"] = json!(reason);
            Some(message)
                .filter(|it| !it.is_empty())
                .into_iter()
                .for_each(|it| condition["message"] = json!(it));
        }
        condition
    };
    let evicted = facts.refusal.filter(|refusal| refusal.reason == EVICTED);
    let over = match phase {
        "Succeeded" => Some(("PodCompleted", String::new())),
        "Failed" if facts.refusal.is_none() || evicted.is_some() => Some(("PodFailed", String::new())),
        _ => None,
    };
    let incomplete = incomplete(all);
    let uninitialized =
        (!incomplete.is_empty()).then(|| ("ContainersNotInitialized", names("incomplete", &incomplete)));
    let unready: Vec<_> = all
        .iter()
        .filter(|one| matches!(one.role, Role::Main | Role::Sidecar) && !one.seen.is_ready())
        .collect();
    let not_ready = over
        .clone()
        .or_else(|| (!unready.is_empty()).then(|| ("ContainersNotReady", names("unready", &unready))));
    let gates = closed_gates(facts.pod);
    let gated = (!gates.is_empty()).then(|| ("ReadinessGatesNotReady", gates.join(", ")));
    let ready = not_ready.clone().or(gated);
    let mut ours = [
        condition("PodScheduled", true, None),
        // It has its network, and nothing has taken that away.
        condition("PodReadyToStartContainers", facts.address.is_some() && over.is_none(), None),
        condition("Initialized", uninitialized.is_none(), uninitialized),
        condition("ContainersReady", not_ready.is_none(), not_ready),
        condition("Ready", ready.is_none(), ready),
    ];
    if phase == "Succeeded" {
        // As the kubelet has it: `Initialized` tells why it will change no more.
        ours[2]["reason"] = json!("PodCompleted");
    }
    let disrupted = evicted.filter(|refusal| disk::is_disruption(&refusal.message));
    let disruption = disrupted.map(|refusal| {
        let mut condition = condition(DISRUPTION, true, None);
        condition["reason"] = json!(BY_KUBELET);
        condition["message"] = json!(refusal.message);
        condition
    });
    let mut others = others(facts.pod);
    others.retain(|it| disruption.is_none() || it["type"] != DISRUPTION);
    ours.into_iter().chain(disruption).chain(others).collect()
}

/// Conditions that somebody else writes, which a merge patch would take away: also why somebody else disrupts the Pod.
fn others(pod: &Pod) -> Vec<Value> {
    let known = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let foreign = |condition: &&PodCondition| match condition.type_.as_str() {
        DISRUPTION => condition.reason.as_deref() != Some(BY_KUBELET),
        kind => !OURS.contains(&kind),
    };
    known.filter(foreign).map(|it| json!(it)).collect()
}

/// What is wrong with conditions that the Pod waits for.
fn closed_gates(pod: &Pod) -> Vec<String> {
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let problem = |kind: &str| {
        let mut known = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        match known.find(|condition| condition.type_ == kind).map(|condition| condition.status.as_str()) {
            Some("True") => None,
            Some(other) => {
                Some(format!("the status of pod readiness gate {kind:?} is not \"True\", but {other}"))
            }
            None => Some(format!("corresponding condition of pod readiness gate {kind:?} does not exist.")),
        }
    };
    gates.filter_map(|gate| problem(&gate.condition_type)).collect()
}

fn container_status(pod: &Pod, one: One<'_>, has_inits: bool) -> Value {
    let One { slot, role, name, seen } = one;
    let (now, last) = states(pod, one, has_inits);
    let ready = match role {
        Role::Init => matches!(&seen.doing, Doing::Ended(end) if end.code == 0),
        Role::Ephemeral => false,
        _ => seen.is_ready(),
    };
    // What is told is that of an instance: until there is another one, that of the one before.
    let instance = match &seen.doing {
        Doing::Absent | Doing::Starting => seen.last.as_ref().map(|end| end.restarts),
        Doing::Running(_) | Doing::Ended(_) => Some(seen.restarts),
    };
    let ran = Some(seen.image.as_str()).filter(|image| instance.is_some() && !image.is_empty());
    json!({
        "name": name,
        "image": ran.or(slot.image(pod)),
        "imageID": seen.image_id,
        "containerID": instance.map(|restarts| container_id(pod, slot, restarts)),
        "ready": ready,
        "started": (role != Role::Ephemeral).then(|| seen.has_started()),
        "restartCount": instance.unwrap_or(0),
        "state": now,
        "lastState": last.map_or_else(|| json!({}), |end| terminated(pod, slot, end)),
    })
}

/// What it is doing, and how the instance before ended.
fn states<'a>(pod: &Pod, one: One<'a>, has_inits: bool) -> (Value, Option<&'a Finished>) {
    let seen = one.seen;
    let creating = if has_inits { "PodInitializing" } else { "ContainerCreating" };
    let waits = || match &seen.waits {
        Some(refusal) => waiting(refusal.reason, &refusal.message),
        None => waiting(creating, ""),
    };
    match &seen.doing {
        Doing::Absent | Doing::Starting => (waits(), seen.last.as_ref()),
        // Until its hook is through, it is not said to run.
        Doing::Running(it) if it.greeted => {
            (json!({"running": {"startedAt": seconds(it.since)}}), seen.last.as_ref())
        }
        Doing::Running(_) => (waiting(creating, ""), seen.last.as_ref()),
        Doing::Ended(end) if seen.waits.is_some() => (waits(), Some(end)),
        Doing::Ended(end) => (terminated(pod, one.slot, end), seen.last.as_ref()),
    }
}

fn container_id(pod: &Pod, slot: Slot, restarts: u32) -> Option<String> {
    let id = slot.sandbox_id(pod).ok()?;
    let asked = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref());
    let driver = asked.filter(|name| !name.is_empty()).unwrap_or("native");
    Some(if restarts == 0 { format!("{driver}://{id}") } else { format!("{driver}://{id}.{restarts}") })
}

fn waiting(reason: &str, message: &str) -> Value {
    let message = Some(message).filter(|message| !message.is_empty());
    json!({"waiting": {"reason": reason, "message": message}})
}

fn terminated(pod: &Pod, slot: Slot, end: &Finished) -> Value {
    json!({"terminated": {
        "exitCode": end.code, "reason": end.reason, "message": end.message,
        "startedAt": seconds(end.since), "finishedAt": seconds(end.at),
        "containerID": container_id(pod, slot, end.restarts),
    }})
}

/// Kubernetes writes whole seconds.
fn seconds(time: SystemTime) -> Option<Timestamp> {
    let time = Timestamp::try_from(time).ok()?;
    Timestamp::from_second(time.as_second()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::plan::Running;
    use asb_runtime::Exit;
    use std::time::Duration;

    const SINCE: SystemTime = SystemTime::UNIX_EPOCH;
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
    const SIX: Ipv6Addr = Ipv6Addr::new(0xfd61, 0, 0, 0, 0, 0, 0, 2);

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "box", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn one_container() -> Pod {
        pod(json!({"containers": [{"name": "main", "image": "host"}]}))
    }

    fn facts<'a>(pod: &'a Pod, seen: &'a [Seen], outcome: Option<Outcome>) -> Facts<'a> {
        let now = SINCE + Duration::from_secs(50);
        let address = Some(ADDRESS);
        Facts {
            pod,
            conditions: &[],
            seen,
            outcome,
            refusal: None,
            address,
            address6: Some(SIX),
            since: SINCE,
            now,
        }
    }

    fn running() -> Seen {
        let doing = Doing::Running(Running {
            since: SINCE,
            greeted: true,
            started: true,
            ready: true,
            stopping: false,
            restart: false,
        });
        Seen { doing, image_id: "id".into(), ..Seen::default() }
    }

    fn ended(exit: Exit) -> Seen {
        let end = Finished::new(exit, SINCE, SINCE + Duration::from_secs(30), 0);
        Seen { doing: Doing::Ended(end), ..Seen::default() }
    }

    fn text<'a>(value: &'a Value, field: &str) -> &'a str {
        value[field].as_str().unwrap_or_default()
    }

    /// Type, status and reason of every condition.
    fn conditions(status: &Value) -> Vec<(&str, &str, &str)> {
        let all = status["conditions"].as_array().unwrap().iter();
        let read = |it| ["type", "status", "reason"].map(|field| text(it, field));
        all.map(|it| read(it).into()).collect()
    }

    #[test]
    fn running_container_makes_a_ready_pod_with_an_address() {
        let (pod, seen) = (one_container(), [Seen { restarts: 2, ..running() }]);
        let status = status(&facts(&pod, &seen, None));
        assert_eq!((&status["phase"], &status["podIP"]), (&json!("Running"), &json!("10.88.0.2")));
        assert_eq!(status["podIPs"], json!([{"ip": "10.88.0.2"}, {"ip": "fd61::2"}]));
        assert!(conditions(&status).iter().all(|(_, status, _)| *status == "True"));
        let container = &status["containerStatuses"][0];
        assert_eq!((&container["restartCount"], &container["imageID"]), (&json!(2), &json!("id")));
        assert_eq!(container["containerID"], "native://u.2");
    }

    #[test]
    fn container_is_named_after_the_driver_that_runs_it() {
        let mut pod = one_container();
        pod.spec.as_mut().unwrap().runtime_class_name = Some("gvisor".to_owned());
        let status = status(&facts(&pod, &[running()], None));
        assert_eq!(status["containerStatuses"][0]["containerID"], "gvisor://u");
    }

    #[test]
    fn end_of_a_container_decides_phase_reason_and_exit_code() {
        for (exit, outcome, phase, reason, code) in [
            (Exit::Code(0), Outcome::Succeeded, "Succeeded", "Completed", 0),
            (Exit::Code(3), Outcome::Failed, "Failed", "Error", 3),
            (Exit::Signal(9), Outcome::Failed, "Failed", "Error", 137),
            (Exit::OutOfMemory, Outcome::Failed, "Failed", "OOMKilled", 137),
        ] {
            let (pod, seen) = (one_container(), [ended(exit)]);
            let status = status(&facts(&pod, &seen, Some(outcome)));
            let state = &status["containerStatuses"][0]["state"]["terminated"];
            assert_eq!(
                (&status["phase"], &state["reason"], &state["exitCode"]),
                (&json!(phase), &json!(reason), &json!(code))
            );
            let ready = conditions(&status)[4];
            let why = if phase == "Succeeded" { "PodCompleted" } else { "PodFailed" };
            assert_eq!(ready, ("Ready", "False", why));
        }
    }

    #[test]
    fn who_disrupts_a_pod_from_outside_stays_told() {
        let (mut pod, seen) = (one_container(), [running()]);
        let condition = json!({"type": DISRUPTION, "status": "True", "reason": "DeletionByTaintManager"});
        pod.status = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
        let told = status(&facts(&pod, &seen, None));
        let found = |told: &Value| conditions(told).iter().filter(|(kind, ..)| *kind == DISRUPTION).count();
        assert_eq!(found(&told), 1);
        let refusal = Refusal::new(EVICTED, "too much. ");
        let told = status(&Facts { refusal: Some(&refusal), ..facts(&pod, &seen, Some(Outcome::Refused)) });
        assert_eq!(found(&told), 1, "one condition of a type");
    }

    #[test]
    fn evicted_pod_has_failed_and_says_by_whom_and_why() {
        let (mut pod, seen) = (one_container(), [ended(Exit::Signal(9))]);
        let evicted = |pod: &Pod, refusal: &Refusal| {
            status(&Facts { refusal: Some(refusal), ..facts(pod, &seen, Some(Outcome::Refused)) })
        };
        let over_its_limit = evicted(&pod, &Refusal::new(EVICTED, "too much. "));
        assert_eq!(conditions(&over_its_limit)[4..], [("Ready", "False", "PodFailed")], "no disruption");
        let refusal = Refusal::new(EVICTED, "The node was low on resource: x. ");
        let status = |pod: &Pod| evicted(pod, &refusal);
        let told = status(&pod);
        assert_eq!((text(&told, "phase"), text(&told, "reason")), ("Failed", "Evicted"));
        assert_eq!(text(&told, "message"), refusal.message);
        assert_eq!(
            conditions(&told)[4..],
            [("Ready", "False", "PodFailed"), ("DisruptionTarget", "True", "TerminationByKubelet"),]
        );
        pod.status = serde_json::from_value(told.clone()).unwrap();
        assert_eq!(conditions(&status(&pod)), conditions(&told), "told once");
    }

    #[test]
    fn pod_that_waits_says_why() {
        let refusal = Refusal::new("ErrImagePull", "spec.containers[0].image: no image");
        let pod = one_container();
        let waits = [Seen { waits: Some(refusal), ..Seen::default() }];
        let status_of = |seen: &[Seen]| status(&facts(&pod, seen, None));
        let status = status_of(&waits);
        assert_eq!(status["phase"], "Pending");
        assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "ErrImagePull");
        let crash = Refusal::new("CrashLoopBackOff", "soon");
        let status = status_of(&[Seen { waits: Some(crash), ..ended(Exit::Code(1)) }]);
        assert_eq!(status["phase"], "Running");
        assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "CrashLoopBackOff");
        assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 1);
    }

    #[test]
    fn status_names_the_image_that_runs_or_ran_last() {
        let mut pod = one_container();
        let of = |pod: &Pod, seen: Seen| {
            let status = status(&facts(pod, &[seen], None));
            let one = &status["containerStatuses"][0];
            (text(one, "image").to_owned(), text(one, "containerID").to_owned(), one["restartCount"].clone())
        };
        let told = |image: &str, id: &str, restarts: u32| (image.to_owned(), id.to_owned(), json!(restarts));
        assert_eq!(of(&pod, Seen::default()), told("host", "", 0));
        pod.spec.as_mut().unwrap().containers[0].image = Some("new".to_owned());
        let ran = |seen: Seen| Seen { image: "host".to_owned(), ..seen };
        assert_eq!(of(&pod, ran(running())), told("host", "native://u", 0));
        let mut waits = ran(ended(Exit::Code(0)));
        waits.cleared();
        waits.waits = Some(Refusal::new("ErrImagePull", "there is none"));
        assert_eq!(of(&pod, waits), told("host", "native://u", 0), "the next one is not there");
        assert_eq!(of(&pod, Seen { image: "new".to_owned(), ..running() }).0, "new");
    }

    #[test]
    fn init_containers_come_before_and_sidecars_count_as_ready() {
        let pod = pod(json!({
            "initContainers": [{"name": "a"}, {"name": "side", "restartPolicy": "Always"}],
            "containers": [{"name": "main"}],
        }));
        let status_of = |seen: &[Seen]| status(&facts(&pod, seen, None));
        let begun = status_of(&[running(), Seen::default(), Seen::default()]);
        assert_eq!(begun["phase"], "Pending");
        assert_eq!(begun["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
        assert!(begun["initContainerStatuses"][0]["state"]["running"].is_object());
        assert_eq!(conditions(&begun)[2], ("Initialized", "False", "ContainersNotInitialized"));
        let all = status_of(&[ended(Exit::Code(0)), running(), running()]);
        assert_eq!(
            (&all["phase"], &all["initContainerStatuses"][0]["ready"]),
            (&json!("Running"), &json!(true))
        );
        assert!(conditions(&all).iter().all(|(_, status, _)| *status == "True"), "{all}");
        let lost = status_of(&[ended(Exit::Code(0)), ended(Exit::Code(1)), running()]);
        assert_eq!(conditions(&lost)[2], ("Initialized", "True", ""), "once initialized it stays so");
        assert_eq!(conditions(&lost)[4], ("Ready", "False", "ContainersNotReady"));
        assert_eq!(lost["conditions"][4]["message"], "containers with unready status: [side]");
    }

    #[test]
    fn pod_on_its_way_out_runs_until_its_sidecars_have_ended() {
        let pod = pod(json!({
            "initContainers": [{"name": "side", "restartPolicy": "Always"}], "containers": [{"name": "main"}],
        }));
        let seen = [running(), ended(Exit::Code(0))];
        assert_eq!(status(&facts(&pod, &seen, Some(Outcome::Succeeded)))["phase"], "Running");
        let seen = [ended(Exit::Signal(15)), ended(Exit::Code(0))];
        assert_eq!(status(&facts(&pod, &seen, Some(Outcome::Succeeded)))["phase"], "Succeeded");
    }

    #[test]
    fn gates_hold_ready_back_and_conditions_of_others_are_kept() {
        let mut pod = pod(json!({
            "containers": [{"name": "main"}], "readinessGates": [{"conditionType": "x.test/up"}],
        }));
        let seen = [running()];
        let closed = status(&facts(&pod, &seen, None));
        assert_eq!(conditions(&closed)[3], ("ContainersReady", "True", ""));
        assert_eq!(conditions(&closed)[4], ("Ready", "False", "ReadinessGatesNotReady"));
        let message = "corresponding condition of pod readiness gate \"x.test/up\" does not exist.";
        assert_eq!(closed["conditions"][4]["message"], message);
        pod.status =
            serde_json::from_value(json!({"conditions": [{"type": "x.test/up", "status": "True"}]})).unwrap();
        let open = status(&facts(&pod, &seen, None));
        assert_eq!(conditions(&open)[4..], [("Ready", "True", ""), ("x.test/up", "True", "")]);
    }

    #[test]
    fn time_of_a_change_stays_that_of_the_change() {
        let (pod, seen) = (one_container(), [running()]);
        let known =
            [json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"})];
        let status = status(&Facts { conditions: &known, ..facts(&pod, &seen, None) });
        assert_eq!(status["conditions"][4]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(status["conditions"][3]["lastTransitionTime"], "1970-01-01T00:00:50Z");
    }
}
