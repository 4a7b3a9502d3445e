//! Binds Pods that waited as soon as they fit, and tells the others why they still wait.

use std::sync::Arc;
use std::time::Duration;

use asb_scheduler::{Decision, UNSCHEDULABLE, Verdict};
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::report::{self, Failure};
use super::taints::Taints;
use super::{PODS, Scheduling, place};
use crate::background;
use crate::ops::Api;
use crate::store::WriteError;

const TASK: &str = "scheduling";
/// The pause after a write that the disk has refused.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// The pause between two looks at all Pods because of a taint.
const PAUSE: Duration = Duration::from_millis(50);
/// A clock that is set is noticed after so long.
const LONGEST: Duration = Duration::from_secs(60);

/// Works until the server stops.
pub(crate) async fn run(api: Arc<Api>, failures: mpsc::Receiver<Failure>) {
    let Some(scheduling) = api.scheduling.clone() else { return };
    tokio::spawn(report::run(api.clone(), failures));
    let mut taints = Taints::default();
    let mut next = None;
    loop {
        tokio::select! {
            () = api.stopping.cancelled() => return,
            () = scheduling.wake.notified() => {}
            () = until(next) => {}
        }
        while scheduling.ledger().has_work() && !api.stopping.is_cancelled() {
            let bound = background::step(TASK, bind_waiting(&api, &scheduling)).await;
            if !matches!(bound, Some(Ok(()))) {
                tokio::time::sleep(AGAIN).await;
                // Pods that have to leave do not wait until the writes succeed.
                scheduling.wake.notify_one();
                break;
            }
        }
        let looked = background::step(TASK, taints.evict(&api, &scheduling)).await;
        next = looked.unwrap_or_else(|| Some(Timestamp::now() + AGAIN));
        if taints.are_there() {
            // All Pods were read. What happens meanwhile is looked at together.
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Waits until this moment, or for ever.
async fn until(moment: Option<Timestamp>) {
    let Some(moment) = moment else { return std::future::pending().await };
    let left = Duration::try_from(moment.duration_since(Timestamp::now())).unwrap_or_default();
    tokio::time::sleep(left.min(LONGEST)).await;
}

/// Looks at all Pods that wait. Fails if one of the decisions could not be written.
async fn bind_waiting(api: &Api, scheduling: &Scheduling) -> Result<(), Unwritten> {
    let decisions = scheduling.ledger().decide();
    let mut outcome = Ok(());
    for decision in decisions {
        let written = background::step(TASK, async { carry_out(api, scheduling, &decision) }).await;
        if !matches!(written, Some(Ok(()))) {
            scheduling.synchronise(api, &decision.uid);
            outcome = Err(Unwritten);
        }
        tokio::task::yield_now().await;
    }
    outcome
}

/// The disk refused a write, or the write panicked.
struct Unwritten;

fn carry_out(api: &Api, scheduling: &Scheduling, decision: &Decision) -> Result<(), WriteError> {
    let Some(target) = api.registry.stored_in(PODS) else { return Ok(()) };
    let Some((_, entry)) = api.store.find(&decision.uid) else {
        scheduling.ledger().remove(&decision.uid);
        return Ok(());
    };
    // The tap has seen whatever is found, and what comes after it is a conflict.
    if !scheduling.ledger().stands(decision) {
        return Ok(());
    }
    let written = api.amend(&target, &entry, |pod| match &decision.verdict {
        Verdict::Place => place::bind(pod, &scheduling.node),
        Verdict::Unfit(message) => {
            let generation = pod["metadata"]["generation"].clone();
            place::tell(pod, place::condition(UNSCHEDULABLE, message, &generation));
        }
    });
    match (written, &decision.verdict) {
        // The Pod has changed, and the tap has put it back into the queue.
        (Err(WriteError::Conflict), _) | (Ok(_), Verdict::Place) => Ok(()),
        (Ok(_), Verdict::Unfit(message)) => {
            let meta = &entry.meta;
            scheduling.report(Failure::unschedulable(
                &meta.namespace,
                &meta.name,
                &meta.uid,
                message.clone(),
            ));
            Ok(())
        }
        (Err(error), _) => Err(error),
    }
}

impl Scheduling {
    /// Brings the ledger's entry for a Pod in line with the store after a write that failed, and has all Pods that wait looked
    /// at again.
    pub fn synchronise(&self, api: &Api, uid: &str) {
        let found = || api.store.find(uid).map(|(_, entry)| entry);
        loop {
            let before = found();
            match &before {
                Some(entry) => self.take_in_pod(entry),
                None => self.ledger().remove(uid),
            }
            // A change in between was taken in by the tap, before what was found here.
            if found().map(|entry| entry.revision) == before.map(|entry| entry.revision) {
                break;
            }
        }
        let mut ledger = self.ledger();
        ledger.look_again();
        if ledger.has_work() {
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use asb_scheduler::Pod;
    use serde::Deserialize as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::ops::WriteOptions;
    use crate::{ApiServer, Config};

    fn binding(node: &str) -> Value {
        json!({"target": {"kind": "Node", "name": node}})
    }

    #[tokio::test]
    async fn a_binding_that_is_not_written_leaves_the_ledger_as_the_store_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let config =
            Config { data_dir: dir.path().to_owned(), crds: vec![], node_name: Some("here".to_owned()) };
        let api = ApiServer::open(config).await.expect("the server opens").api;
        let find = |plural: &str| api.registry.find("", "v1", plural).expect("a built-in kind");
        let create = |plural: &str, namespace: &str, object: Value| {
            let made = api.create(&find(plural), namespace, object, &WriteOptions::default());
            made.map_err(|error| error.message).expect("created").entry
        };
        let pod = |name: &str| {
            let containers = json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]);
            json!({"metadata": {"name": name}, "spec": {"containers": containers}})
        };
        let status = json!({"allocatable": {"cpu": "2", "pods": "9"}});
        let node = create("nodes", "", json!({"metadata": {"name": "here"}, "status": status}));
        let bound = create("pods", "default", pod("bound"));
        let cordon = |node: &mut Value| node["spec"]["unschedulable"] = true.into();
        api.amend(&find("nodes"), &node, cordon).expect("written");
        let waiting = create("pods", "default", pod("waiting"));
        let scheduling = api.scheduling.clone().expect("there is a node");
        let holds = |entry: &crate::store::Entry, verdict: Verdict| {
            scheduling.ledger().stands(&Decision { uid: entry.meta.uid.clone(), verdict })
        };
        let unfit = || Verdict::Unfit(String::new());
        assert!(holds(&bound, Verdict::Place) && holds(&waiting, unfit()));

        // The queue has bound the Pod between the read and the write of a client's binding, which is a conflict.
        let mut object = bound.parse();
        let read = Pod::deserialize(&object).expect("readable");
        assert!(scheduling.admit(&read, &mut object), "its own place does not count against it");
        scheduling.synchronise(&api, &bound.meta.uid);
        assert!(holds(&bound, Verdict::Place), "a bound Pod keeps its place");

        // The disk refuses the write of a client's binding, which a kubelet would accept on a cordoned node.
        api.store.stop().await;
        let node = || api.get(&find("nodes"), "", "here").map_err(|error| error.message).expect("a node");
        while api.amend(&find("nodes"), &node(), |_| ()).is_ok() {}
        let refused = api.bind(&find("pods"), "default", "waiting", &binding("here"), false);
        assert!(refused.is_err(), "the store is closed");
        assert!(holds(&waiting, unfit()), "a Pod that is not bound waits on");
        assert!(holds(&bound, Verdict::Place));
    }
}
