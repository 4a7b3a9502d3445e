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
use crate::claim::plan::{Step, bound_name, create, is_acceptable, plan, surplus};
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
    /// One step for one claim; whether anything was written or tried.
    fn step(&mut self, server: &mut Server, claim: &str) -> bool {
        let Some(claim) = self.view.claims.get(claim).cloned() else { return false };
        let sandboxes: Vec<_> = self.view.sandboxes.values().cloned().collect();
        let seen = seen(&claim, &sandboxes);
        let step = match plan(&claim, &seen, &domains()).expect("nobody made a mistake") {
            Step::Adopt => {
                let candidates = Candidates::new(Arc::new(Queue::new("test", &Config::default())));
                sandboxes.iter().for_each(|it| candidates.observe(None, Some(&Arc::new(it.clone()))));
                match candidates.reserve(&claim, false, is_acceptable(&seen)) {
                    Choice::Reserved(held) => Step::Complete(held.sandbox.clone()),
                    Choice::Pending | Choice::Nothing => {
                        create(&claim, &seen).expect("the template is there")
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
        !surplus.is_empty()
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// A controller's watch catches up.
    CatchUp(usize),
    /// A controller dies and another takes its place.
    Restart(usize),
    Step(usize, usize),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (0..2_usize).prop_map(Event::CatchUp),
        1 => (0..2_usize).prop_map(Event::Restart),
        8 => (0..2_usize, 0..4_usize).prop_map(|(controller, claim)| Event::Step(controller, claim)),
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
        let mut server = world(claims, members, &recorded);
        let mut controllers = [0, 1].map(|_| Controller { view: server.objects.clone() });
        for event in events {
            match event {
                Event::CatchUp(at) | Event::Restart(at) => controllers[at].view = server.objects.clone(),
                Event::Step(at, claim) => _ = controllers[at].step(&mut server, &format!("c{claim}")),
            }
        }
        // Quiet: views catch up, and every claim is worked on until nothing is left to do.
        let mut rounds = 0;
        loop {
            let mut busy = false;
            for controller in &mut controllers {
                for claim in 0..claims {
                    controller.view = server.objects.clone();
                    busy |= controller.step(&mut server, &format!("c{claim}"));
                }
            }
            if !busy { break; }
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
    }
}
