//! Two controllers with views that lag, one API server that accepts a write only for the state that was seen: in the
//! end every claim has one Sandbox and no Sandbox has two claims, whatever happened in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use asb_types::{Claim, Sandbox, key};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::*;
use crate::Config;
use crate::claim::candidates::{Candidates, Choice, is_adoptable};
use crate::claim::judge::{judge, patch as status_patch};
use crate::claim::plan::{Step, bound_name, cold, doubtful, is_acceptable, plan, surplus};
use crate::claim::transfer::transfer;
use crate::object::controller_of;
use crate::queue::Queue;

#[derive(Clone, Default)]
struct Objects {
    sandboxes: BTreeMap<String, Sandbox>,
    claims: BTreeMap<String, Claim>,
}

#[derive(Default)]
struct Server {
    objects: Objects,
    revision: u64,
    made: u64,
    /// UIDs of deleted Sandboxes, with who controlled them and whether a status named them.
    deleted: Vec<(String, bool)>,
}

/// A controller: what it has seen of the server.
struct Controller {
    view: Objects,
}

fn name(object: &impl kube::Resource) -> String {
    object.meta().name.clone().unwrap()
}

impl Server {
    fn sandbox(&mut self, name: &str, patch: &Value) -> Result<Sandbox, ()> {
        let found = self.objects.sandboxes.get_mut(name).ok_or(())?;
        let locked = |field: &str, value: &Option<String>| {
            patch["metadata"].get(field).is_none_or(|wanted| *wanted == json!(value))
        };
        if !locked("uid", &found.metadata.uid) || !locked("resourceVersion", &found.metadata.resource_version)
        {
            return Err(());
        }
        self.revision += 1;
        let mut patch = patch.clone();
        patch["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        *found = edit(found, patch);
        Ok(found.clone())
    }

    fn create(&mut self, object: &Value) -> Result<Sandbox, ()> {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if self.objects.sandboxes.contains_key(&name) {
            return Err(());
        }
        self.revision += 1;
        self.made += 1;
        let mut object = object.clone();
        object["metadata"]["uid"] = json!(format!("made-{}", self.made));
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let sandbox: Sandbox = serde_json::from_value(object).unwrap();
        self.objects.sandboxes.insert(name, sandbox.clone());
        Ok(sandbox)
    }

    fn status(&mut self, seen: &Claim, status: &Value) -> Result<Claim, ()> {
        let found = self.objects.claims.get_mut(&name(seen)).ok_or(())?;
        if found.metadata.resource_version != seen.metadata.resource_version {
            return Err(());
        }
        self.revision += 1;
        *found = edit(
            found,
            json!({"metadata": {"resourceVersion": self.revision.to_string()}, "status": status}),
        );
        Ok(found.clone())
    }
}

impl Controller {
    /// One step for one claim, while other claims of this process hold the first `held` members; whether anything was
    /// written or tried.
    fn step(&mut self, server: &mut Server, claim: &str, held: usize) -> bool {
        let Some(claim) = self.view.claims.get(claim).cloned() else { return false };
        let look = |view: &Objects| seen(&claim, &view.sandboxes.values().cloned().collect::<Vec<_>>());
        if let Some(name) = doubtful(&claim, &look(&self.view)) {
            match server.objects.sandboxes.get(name) {
                Some(fresh) => self.view.sandboxes.insert(name.to_owned(), fresh.clone()),
                None => self.view.sandboxes.remove(name),
            };
        }
        let seen = look(&self.view);
        let step = match plan(&claim, &seen, &domains()).expect("nobody made a mistake") {
            Step::Adopt => {
                let candidates = Candidates::new(Arc::new(Queue::new("test", 1, &Config::default())));
                let members = self.view.sandboxes.values();
                members.for_each(|member| candidates.observe(None, Some(&Arc::new(member.clone()))));
                let other = super::world::claim("other", json!({}));
                let _held: Vec<_> =
                    (0..held).map(|_| candidates.reserve(&other, false, is_acceptable(&seen))).collect();
                match candidates.reserve(&claim, false, is_acceptable(&seen)) {
                    Choice::Reserved(chosen) => Step::Complete(chosen.sandbox.clone()),
                    Choice::Pending | Choice::Nothing => {
                        Step::Create(cold(&claim, &seen).expect("the template is there"))
                    }
                }
            }
            step => step,
        };
        let written = match step {
            Step::Rest(sandbox) => return self.settle(server, &claim, &sandbox),
            Step::Follow { sandbox, patch } => server.sandbox(&name(&*sandbox), &patch),
            Step::Complete(sandbox) => {
                assert!(is_adoptable(&sandbox), "only what a pool controls is taken");
                server
                    .sandbox(&name(&*sandbox), &transfer(&claim, &sandbox, seen.template.as_deref()).unwrap())
            }
            Step::Create(object) => server.create(&object),
            Step::DropRecord(patch) => {
                let edited: Claim = edit(&server.objects.claims[&name(&claim)], patch);
                self.view.claims.insert(name(&claim), edited.clone());
                server.objects.claims.insert(name(&claim), edited);
                return true;
            }
            Step::Adopt => unreachable!("decided above"),
        };
        match written {
            Ok(sandbox) => _ = self.view.sandboxes.insert(name(&sandbox), sandbox),
            Err(()) => self.view.sandboxes = server.objects.sandboxes.clone(), // a fresh look
        }
        true
    }

    fn settle(&mut self, server: &mut Server, claim: &Claim, sandbox: &Sandbox) -> bool {
        let status = judge(claim, Ok(sandbox), at(1000));
        if claim.status.as_ref() != Some(&status) {
            if let Ok(written) = server.status(claim, &status_patch(&status)) {
                self.view.claims.insert(name(claim), written);
            }
            return true;
        }
        let sandboxes: Vec<_> = self.view.sandboxes.values().cloned().collect();
        if surplus(claim, &seen(claim, &sandboxes)).is_empty() {
            return false;
        }
        // As `give_back_surplus` does: the server itself says which one is named.
        let claim = &server.objects.claims[&name(claim)].clone();
        self.view.claims.insert(name(claim), claim.clone());
        let surplus = surplus(claim, &seen(claim, &sandboxes));
        for identity in &surplus {
            let Some(found) = server.objects.sandboxes.get(&identity.name) else { continue };
            if found.metadata.resource_version.as_deref() != Some(&identity.resource_version) {
                continue;
            }
            let owner = controller_of(found).map(|owner| owner.uid.clone()).unwrap_or_default();
            assert_eq!(Some(&owner), claim.metadata.uid.as_ref(), "never what is not owned");
            let named = bound_name(&server.objects.claims[&name(claim)]) == identity.name;
            server.deleted.push((owner, named));
            server.objects.sandboxes.remove(&identity.name);
        }
        self.view.sandboxes = server.objects.sandboxes.clone();
        true
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// One of a controller's two watches catches up; they do not wait for each other.
    SeeSandboxes(usize),
    SeeClaims(usize),
    /// A controller dies and another takes its place.
    Restart(usize),
    Step(usize, usize, usize),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (0..2_usize).prop_map(Event::SeeSandboxes),
        2 => (0..2_usize).prop_map(Event::SeeClaims),
        1 => (0..2_usize).prop_map(Event::Restart),
        8 => (0..2_usize, 0..4_usize, 0..3_usize)
            .prop_map(|(controller, claim, held)| Event::Step(controller, claim, held)),
    ]
}

fn world(claims: usize, members: usize, recorded_: &[Option<usize>]) -> Server {
    let mut server = Server::default();
    for n in 0..members {
        let sandbox = ready(member(&format!("m{n}"), i64::try_from(n).unwrap()));
        server.objects.sandboxes.insert(name(&sandbox), sandbox);
    }
    for n in 0..claims {
        // As the reference leaves it when it dies between its two writes.
        let record = recorded_.get(n).copied().flatten().map(|member| format!("m{member}"));
        let notes = json!({"metadata": {"annotations": {key::SANDBOX_NAME: record}}});
        let claim = claim(&format!("c{n}"), notes);
        server.objects.claims.insert(name(&claim), claim);
    }
    server
}

/// Lets things happen, then lets everything come to rest, and looks at what has become of it.
fn comes_right(
    claims: usize,
    members: usize,
    recorded: &[Option<usize>],
    events: Vec<Event>,
) -> Result<(), TestCaseError> {
    let mut server = world(claims, members, recorded);
    let mut controllers = [0, 1].map(|_| Controller { view: server.objects.clone() });
    for event in events {
        match event {
            Event::SeeSandboxes(at) => controllers[at].view.sandboxes = server.objects.sandboxes.clone(),
            Event::SeeClaims(at) => controllers[at].view.claims = server.objects.claims.clone(),
            Event::Restart(at) => controllers[at].view = server.objects.clone(),
            Event::Step(at, claim, held) => _ = controllers[at].step(&mut server, &format!("c{claim}"), held),
        }
    }
    // Quiet: views catch up, and every claim is worked on until nothing is left to do.
    let mut rounds = 0;
    loop {
        let mut busy = false;
        for controller in &mut controllers {
            for claim in 0..claims {
                controller.view = server.objects.clone();
                busy |= controller.step(&mut server, &format!("c{claim}"), 0);
            }
        }
        if !busy {
            break;
        }
        rounds += 1;
        prop_assert!(rounds < 20, "it never comes to rest");
    }
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sandbox in server.objects.sandboxes.values() {
        let owner = controller_of(sandbox).unwrap();
        if owner.kind == "SandboxClaim" {
            owners.entry(owner.uid.clone()).or_default().push(name(sandbox));
        }
    }
    for claim in server.objects.claims.values() {
        let owned = owners.remove(claim.metadata.uid.as_ref().unwrap()).unwrap_or_default();
        prop_assert_eq!(owned, [bound_name(claim)], "one, and the one that the status names");
    }
    prop_assert!(server.deleted.iter().all(|(_, named)| !named), "what a status names is never given back");
    Ok(())
}

/// A controller whose view of a claim lags must ask before it gives back what it takes for surplus.
#[test]
fn sandbox_that_a_status_names_by_now_is_kept_by_a_controller_that_has_not_seen_it() {
    use Event::{SeeClaims, SeeSandboxes, Step};
    let events = [
        Step(1, 0, 0),
        Step(0, 0, 1),
        Step(1, 0, 0),
        SeeSandboxes(1),
        Step(0, 1, 0),
        SeeClaims(0),
        Step(0, 0, 0),
        Step(1, 0, 0),
    ];
    comes_right(4, 1, &[None, None, Some(0), Some(0)], events.to_vec())
        .unwrap_or_else(|error| panic!("{error}"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// CL-085, CL-100, CL-105
    #[test]
    fn every_claim_ends_with_one_sandbox_of_its_own(
        claims in 1..5_usize,
        members in 0..5_usize,
        recorded in prop::collection::vec(prop::option::weighted(0.3, 0..5_usize), 4),
        events in prop::collection::vec(any_event(), 0..80),
    ) {
        comes_right(claims, members, &recorded, events)?;
    }
}
