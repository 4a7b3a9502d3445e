//! Decisions over many Pods: the words of kube-scheduler and of the kubelet, the order, and that nothing is given twice.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn node(change: impl FnOnce(&mut Value)) -> Node {
    let allocatable = json!({"cpu": "2", "memory": "4Gi", "ephemeral-storage": "10Gi", "pods": "3"});
    let mut node = json!({
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1", "disk": "ssd"}},
        "spec": {}, "status": {"allocatable": allocatable},
    });
    change(&mut node);
    serde_json::from_value(node).unwrap()
}

fn ledger(change: impl FnOnce(&mut Value)) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.set_node(Some(node(change)));
    ledger
}

fn pod(name: &str, spec: Value) -> Pod {
    let metadata = json!({"name": name, "uid": name, "namespace": "default", "labels": {"app": name}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn asking(name: &str, requests: Value) -> Pod {
    pod(name, json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
}

fn said(ledger: &mut Ledger, pod: &Pod) -> String {
    match ledger.offer(pod) {
        Offer::Unfit(message) => message,
        other => format!("{other:?}"),
    }
}

const USELESS: &str = "0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
const NEVER: &str = "not eligible due to preemptionPolicy=Never.";
const NO_VICTIMS: &str = "0/1 nodes are available: 1 No preemption victims found for incoming pod.";

/// Every sentence here was said by kube-scheduler 1.36.4 about the same Pod and node.
#[test]
fn a_pod_that_does_not_fit_is_told_why_in_the_schedulers_words() {
    let term = |app: &str, key: &str| {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}]})
    };
    let named = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]}]}});
    let much = json!({"cpu": "3", "memory": "5Gi", "ephemeral-storage": "20Gi", "example.com/gpu": 1});
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                         "labelSelector": {"matchLabels": {"app": "x"}}}]);
    let host = "kubernetes.io/hostname";
    let never = |mut pod: Pod| {
        pod.spec.preemption_policy = "Never".to_owned();
        pod
    };
    let crowded = json!([{"maxSkew": 1, "topologyKey": host, "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2,
                          "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}]);
    for (pod, reasons, preemption) in [
        (never(asking("p", json!({"cpu": "3"}))), "1 Insufficient cpu", NEVER),
        (never(asking("p", json!({"cpu": "1"}))), "1 Insufficient cpu", NEVER),
        (
            pod("p", json!({"topologySpreadConstraints": crowded})),
            "1 node(s) didn't match pod topology spread constraints",
            NO_VICTIMS,
        ),
        (asking("p", json!({"cpu": "3"})), "1 Insufficient cpu", USELESS),
        (
            asking("p", much),
            "1 Insufficient cpu, 1 Insufficient ephemeral-storage, 1 Insufficient example.com/gpu, 1 Insufficient memory",
            USELESS,
        ),
        (
            pod("p", json!({"nodeSelector": {"disk": "hdd"}})),
            "1 node(s) didn't match Pod's node affinity/selector",
            USELESS,
        ),
        (
            pod("p", json!({"affinity": {"nodeAffinity": named}})),
            "1 node(s) didn't satisfy plugin(s) [NodeAffinity]",
            USELESS,
        ),
        (
            pod("p", json!({"affinity": {"podAffinity": term("none", host)}})),
            "1 node(s) didn't match pod affinity rules",
            USELESS,
        ),
        (
            pod("p", json!({"affinity": {"podAffinity": term("p", "zone")}})),
            "1 node(s) didn't match pod affinity rules",
            USELESS,
        ),
        (
            pod("p", json!({"topologySpreadConstraints": spread})),
            "1 node(s) didn't match pod topology spread constraints (missing required label)",
            USELESS,
        ),
        (pod("anti", json!({})), "1 node(s) didn't satisfy existing pods anti-affinity rules", NO_VICTIMS),
        (asking("p", json!({"cpu": "1"})), "1 Insufficient cpu", NO_VICTIMS),
        (
            pod("p", json!({"affinity": {"podAntiAffinity": term("holder", host)}})),
            "1 node(s) didn't match pod anti-affinity rules",
            NO_VICTIMS,
        ),
    ] {
        let mut ledger = ledger(|_| ());
        let mut holder = asking("holder", json!({"cpu": "1500m"}));
        holder.spec.affinity =
            serde_json::from_value(json!({"podAntiAffinity": term("anti", host)})).unwrap();
        assert_eq!(ledger.offer(&holder), Offer::Place);
        let expected = format!(
            "0/1 nodes are available: {reasons}. no new claims to deallocate, preemption: {preemption}"
        );
        assert_eq!(said(&mut ledger, &pod), expected);
        assert!(ledger.placed.len() == 1, "what does not fit takes nothing");
    }
}

#[test]
fn the_first_rule_that_refuses_a_node_is_the_one_that_is_told() {
    let taint = |effect: &str| json!([{"key": "a", "value": "b", "effect": effect}]);
    let words = |change: &dyn Fn(&mut Value), pod: &Pod| said(&mut ledger(change), pod);
    let told = |reason: &str| {
        format!("0/1 nodes are available: 1 {reason}. no new claims to deallocate, preemption: {USELESS}")
    };
    let wrong = pod(
        "p",
        json!({"nodeSelector": {"disk": "hdd"}, "containers": [{"resources": {"requests": {"cpu": "3"}}}]}),
    );
    let cordoned = |node: &mut Value| {
        node["spec"] = json!({"unschedulable": true, "taints": taint("NoSchedule")});
    };
    assert_eq!(words(&cordoned, &wrong), told("node(s) were unschedulable"));
    for effect in ["NoSchedule", "NoExecute"] {
        let tainted = |node: &mut Value| node["spec"]["taints"] = taint(effect);
        assert_eq!(words(&tainted, &wrong), told("node(s) had untolerated taint(s)"));
    }
    assert_eq!(words(&|_| (), &wrong), told("node(s) didn't match Pod's node affinity/selector"));
    let soft = |node: &mut Value| node["spec"]["taints"] = taint("PreferNoSchedule");
    assert_eq!(words(&soft, &pod("p", json!({}))), "Place");
    let tolerant =
        pod("p", json!({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]}));
    assert_eq!(words(&|node: &mut Value| node["spec"]["unschedulable"] = json!(true), &tolerant), "Place");
    assert_eq!(said(&mut Ledger::default(), &wrong), NO_NODES);
}

#[test]
fn a_full_node_says_so_beside_what_else_is_missing() {
    let mut ledger = ledger(|_| ());
    for name in ["a", "b", "c"] {
        assert_eq!(ledger.offer(&asking(name, json!({"cpu": "500m"}))), Offer::Place);
    }
    let expected = |reasons: &str| {
        format!("0/1 nodes are available: {reasons}. no new claims to deallocate, preemption: {NO_VICTIMS}")
    };
    assert_eq!(said(&mut ledger, &pod("d", json!({}))), expected("1 Too many pods"));
    let more = asking("d", json!({"cpu": "1"}));
    assert_eq!(said(&mut ledger, &more), expected("1 Insufficient cpu, 1 Too many pods"));
    ledger.remove("a");
    assert_eq!(ledger.offer(&more), Offer::Place);
}

#[test]
fn a_pod_that_somebody_else_binds_is_rejected_in_the_kubelets_words() {
    let rejected = |ledger: &mut Ledger, pod: &Pod| {
        let Rejection { reason, message } = ledger.admit(pod).unwrap_err();
        format!("{reason}: {message}")
    };
    let mut small = ledger(|node| node["spec"]["unschedulable"] = json!(true));
    assert_eq!(small.admit(&asking("a", json!({"cpu": "500m"}))), Ok(()), "a kubelet knows of no cordon");
    assert_eq!(
        rejected(&mut small, &asking("b", json!({"cpu": "3", "memory": "9Gi"}))),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 500, capacity: 2000"
    );
    assert_eq!(
        rejected(&mut small, &asking("b", json!({"memory": "9Gi"}))),
        "OutOfmemory: Node didn't have enough resource: memory, requested: 9663676416, used: 0, capacity: 4294967296"
    );
    assert_eq!(
        rejected(&mut small, &pod("b", json!({"nodeSelector": {"disk": "hdd"}}))),
        "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    );
    assert_eq!(small.admit(&asking("gpu", json!({"example.com/gpu": 1}))), Ok(()));
    assert_eq!(small.admit(&pod("c", json!({}))), Ok(()));
    assert_eq!(
        rejected(&mut small, &pod("d", json!({}))),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
    let mut mirror = pod("mirror", json!({}));
    mirror.metadata.annotations.insert("kubernetes.io/config.mirror".to_owned(), String::new());
    assert_eq!(small.admit(&mirror), Ok(()), "it runs anyway");
    let mut tainted = ledger(|node| node["spec"]["taints"] = json!([{"key": "a", "effect": "NoExecute"}]));
    assert_eq!(
        rejected(&mut tainted, &pod("a", json!({}))),
        "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
    );
}

#[test]
fn a_pod_that_a_client_binds_does_not_compete_with_the_place_that_it_has() {
    let mut ledger = ledger(|_| ());
    let pod = asking("a", json!({"cpu": "2"}));
    ledger.wait(pod.clone());
    assert_eq!(ledger.decide()[0].verdict, Verdict::Place);
    assert_eq!(ledger.admit(&pod), Ok(()));
    assert_eq!((ledger.used.cpu, ledger.placed.len()), (2000, 1));
}

#[test]
fn pods_that_wait_get_their_places_by_priority_and_then_by_age() {
    let mut ledger = ledger(|node| node["spec"]["unschedulable"] = json!(true));
    let asks = |name: &str, priority: i64| {
        let mut pod = asking(name, json!({"cpu": "1"}));
        pod.spec.priority = priority;
        pod
    };
    for (name, priority) in [("old", 0), ("new", 0), ("urgent", 1000), ("late", 0)] {
        ledger.wait(asks(name, priority));
    }
    let decisions = ledger.decide();
    assert!(decisions.len() == 4 && !ledger.has_work());
    let Verdict::Unfit(why) = &decisions[0].verdict else { panic!("{decisions:?}") };
    for (name, priority) in [("old", 0), ("new", 0), ("urgent", 1000), ("late", 0)] {
        let mut told = asks(name, priority);
        told.tell(why);
        ledger.wait(told);
    }
    assert!(!ledger.has_work(), "to be told something is no change");
    ledger.look_again();
    assert_eq!(ledger.decide(), [], "nobody is told the same twice");
    ledger.set_node(Some(node(|_| ())));
    assert!(ledger.has_work());
    assert_eq!(ledger.offer(&asking("quick", json!({}))), Offer::Queue, "nobody overtakes them");
    let placed = |decisions: Vec<Decision>| -> Vec<String> {
        let placed = decisions.into_iter().filter(|it| it.verdict == Verdict::Place);
        placed.map(|it| it.uid.to_string()).collect()
    };
    assert_eq!(placed(ledger.decide()), ["urgent", "old"]);
    assert_eq!(
        ledger.offer(&asking("quick", json!({}))),
        Offer::Place,
        "there is nothing that it takes from them"
    );
    assert!(!ledger.has_work(), "and nothing that they get from it");
    ledger.remove("quick");
    ledger.remove("urgent");
    assert_eq!(placed(ledger.decide()), ["new"]);
}

#[test]
fn a_pod_that_comes_back_to_the_queue_keeps_its_rank() {
    let mut ledger = ledger(|_| ());
    let made = |name: &str, second: i64| {
        let mut pod = asking(name, json!({"cpu": "2"}));
        pod.metadata.creation_timestamp = Some(jiff::Timestamp::from_second(second).unwrap());
        pod
    };
    ledger.wait(made("old", 1));
    let decisions = ledger.decide();
    assert_eq!(decisions, [Decision { uid: "old".into(), verdict: Verdict::Place }]);
    ledger.wait(made("new", 2));
    // The write of its binding was a conflict.
    ledger.wait(made("old", 1));
    assert_eq!(ledger.decide()[0], decisions[0]);
}

#[test]
fn room_that_becomes_free_while_a_pod_is_written_is_not_missed() {
    let mut ledger = ledger(|_| ());
    ledger.place(&asking("x", json!({"cpu": "2"})));
    let mut huge = asking("huge", json!({"cpu": "3"}));
    let Offer::Unfit(why) = ledger.offer(&huge) else { panic!("it never fits") };
    huge.tell(&why);
    ledger.wait(huge);
    ledger.decide();
    let mut pod = asking("pod", json!({"cpu": "1"}));
    let Offer::Unfit(why) = ledger.offer(&pod) else { panic!("the node is full") };
    ledger.remove("x");
    assert!(ledger.decide().is_empty() && !ledger.has_work(), "the other Pod still does not fit");
    pod.tell(&why);
    ledger.wait(pod);
    assert!(ledger.has_work());
    assert_eq!(ledger.decide(), [Decision { uid: "pod".into(), verdict: Verdict::Place }]);
}

#[test]
fn a_pod_that_waits_for_another_comes_after_it() {
    let mut ledger = ledger(|_| ());
    let term =
        json!([{"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}]);
    let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}});
    let web = pod("web", json!({"affinity": affinity, "priority": 5}));
    assert!(matches!(ledger.offer(&web), Offer::Unfit(_)));
    ledger.wait(web);
    ledger.wait(pod("db", json!({})));
    let first = ledger.decide();
    assert!(matches!(first[0].verdict, Verdict::Unfit(_)) && first[1].verdict == Verdict::Place);
    assert!(ledger.has_work());
    assert_eq!(ledger.decide()[0].verdict, Verdict::Place);
}

#[test]
fn a_decision_stands_until_the_pod_changes() {
    let mut ledger = ledger(|_| ());
    ledger.wait(asking("a", json!({"cpu": "1"})));
    ledger.wait(asking("b", json!({"cpu": "2"})));
    let decisions = ledger.decide();
    assert!(decisions.len() == 2 && decisions.iter().all(|it| ledger.stands(it)));
    ledger.wait(asking("a", json!({"cpu": "1"})));
    ledger.remove("b");
    assert!(!decisions.iter().any(|it| ledger.stands(it)));
    assert!(ledger.has_work());
}

#[test]
fn what_happens_to_a_pod_is_known_by_its_uid() {
    let mut ledger = ledger(|_| ());
    ledger.place(&asking("a", json!({"cpu": "1"})));
    ledger.place(&asking("a", json!({"cpu": "1"})));
    assert_eq!(ledger.used.cpu, 1000, "it has one place");
    let labels = [("app", "other")];
    assert!(ledger.update("a", true, labels.into_iter()));
    assert!(!ledger.update("b", true, labels.into_iter()));
    ledger.wait(asking("a", json!({"cpu": "1"})));
    assert_eq!(ledger.used.cpu, 0, "a place that was not written is given back");
    ledger.remove("a");
    ledger.remove("a");
    assert!(ledger.waiting.is_empty() && ledger.placed.is_empty());
}

impl Ledger {
    fn knows(&self, uid: &str) -> bool {
        self.placed.contains_key(uid) || self.waiting.contains_key(uid)
    }
}

/// What can happen, in any order.
#[derive(Debug, Clone)]
enum Step {
    /// A new Pod is offered, and not yet written.
    Offer(u8, i64),
    /// The write of an offered Pod that did not fit becomes visible.
    Written(u8),
    Admit(u8, i64),
    Wait(u8, i64),
    Place(u8, i64),
    Remove(u8),
    Decide,
    Cordon(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (name, cpu) = (0_u8..8, 0_i64..1500);
    let step = prop_oneof![
        (name.clone(), cpu.clone()).prop_map(|(name, cpu)| Step::Offer(name, cpu)),
        (name.clone(), cpu.clone()).prop_map(|(name, cpu)| Step::Admit(name, cpu)),
        (name.clone(), cpu.clone()).prop_map(|(name, cpu)| Step::Wait(name, cpu)),
        (name.clone(), cpu).prop_map(|(name, cpu)| Step::Place(name, cpu)),
        name.clone().prop_map(Step::Written),
        name.prop_map(Step::Remove),
        Just(Step::Decide),
        any::<bool>().prop_map(Step::Cordon),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn no_more_is_given_than_there_is_and_nothing_that_fits_waits(steps in steps()) {
        let mut ledger = ledger(|_| ());
        // Pods that were bound whether they fit or not.
        let mut forced = false;
        let mut unwritten = HashMap::new();
        for step in steps {
            let of = |name: u8, cpu: i64| asking(&name.to_string(), json!({"cpu": format!("{cpu}m")}));
            match step {
                // A new Pod has a UID that the ledger does not know.
                Step::Offer(name, _) if ledger.knows(&name.to_string()) => {}
                Step::Offer(name, cpu) => {
                    let mut pod = of(name, cpu);
                    let offer = ledger.offer(&pod);
                    if let Offer::Unfit(message) = &offer {
                        pod.tell(message);
                    }
                    if offer != Offer::Place {
                        unwritten.insert(name, pod);
                    }
                }
                Step::Written(name) => {
                    if let Some(pod) = unwritten.remove(&name) {
                        ledger.wait(pod);
                    }
                }
                Step::Admit(name, cpu) => _ = ledger.admit(&of(name, cpu)),
                Step::Wait(name, cpu) => ledger.wait(of(name, cpu)),
                Step::Place(name, cpu) => {
                    forced = true;
                    ledger.place(&of(name, cpu));
                }
                Step::Remove(name) => ledger.remove(&name.to_string()),
                Step::Decide => {
                    ledger.decide();
                    let fits = ledger.waiting.values().filter(|it| ledger.check(&it.pod).is_ok()).count();
                    prop_assert_eq!(fits, 0);
                    prop_assert!(!ledger.has_work());
                }
                Step::Cordon(yes) => {
                    ledger.set_node(Some(node(|node| node["spec"]["unschedulable"] = json!(yes))));
                }
            }
            let misses = !ledger.stale && ledger.waiting.values().any(|it| ledger.check(&it.pod).is_ok());
            prop_assert!(!misses, "a Pod that fits waits, and nothing will look at it");
            let sum: i64 = ledger.placed.values().map(|it| it.requests.cpu).sum();
            prop_assert_eq!(ledger.used.cpu, sum);
            prop_assert!(forced || (sum <= 2000 && ledger.placed.len() <= 3));
            prop_assert!(ledger.placed.keys().all(|uid| !ledger.waiting.contains_key(uid)));
        }
    }
}
