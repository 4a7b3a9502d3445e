//! The effects of the SandboxClaim controller: steps are taken until the claim is at rest.

use std::sync::Arc;
use std::time::Duration;

use asb_types::claim::ClaimShutdownPolicy;
use asb_types::{Claim, ClaimStatus, Sandbox, key};
use jiff::Timestamp;
use kube::api::PropagationPolicy;
use serde_json::{Value, json};

use super::candidates::{Choice, Reservation, is_adoptable};
use super::plan::{self, Seen, Step};
use super::problem::Problem;
use super::{World, judge, transfer};
use crate::caches::pool_of;
use crate::event::{Event, Type};
use crate::object::{Key, Ownership, ownership};
use crate::write::{Identity, Refused, Writer};

pub const REPORTER: &str = "sandboxclaim-controller";
/// Steps in one pass. Only a claim for whose Sandbox others fight needs more than three.
const STEPS: usize = 16;
/// Tries to take one and the same member.
const TRIES: usize = 5;
/// How often a claim that waits for members looks itself, beside being woken.
const WAIT: Duration = Duration::from_millis(500);

/// How the search for a claim's Sandbox ended.
pub enum Resolved {
    Bound(Arc<Sandbox>),
    /// Members are about to be usable; look again after this time.
    Wait(Duration),
}

enum Taken {
    Ours,
    /// Somebody else has it, or it is gone.
    Lost,
}

/// Finds, takes or makes the Sandbox of a claim.
pub async fn resolve(world: &World, claim: &Claim, now: Timestamp) -> Result<Resolved, Problem> {
    let writer = writer(world, claim);
    let mut claim = claim.clone();
    let settings = &world.config.claims;
    if let Some(name) = plan::doubtful(&claim, &world.observe(&claim)) {
        let asked = writer.refresh(name, &world.caches.sandboxes).await;
        asked.map_err(|error| Problem::by(&error))?;
    }
    for _ in 0..STEPS {
        let seen = world.observe(&claim);
        match plan::plan(&claim, &seen, &settings.allowed_label_domains)? {
            Step::Rest(sandbox) => return Ok(Resolved::Bound(sandbox)),
            Step::Follow { sandbox, patch } => {
                let key = Key::of(&*sandbox);
                let merged = writer.merge(&key.name, &patch, &world.caches.sandboxes).await;
                merged.map_err(|error| Problem::by(&error))?;
                return Ok(Resolved::Bound(world.caches.sandboxes.get(&key).unwrap_or(sandbox)));
            }
            Step::Complete(sandbox) => {
                let Some(reservation) = world.candidates.reserve_this(&sandbox) else {
                    return Err(Problem::Conflict(format!("Sandbox {:?} is being taken", name(&sandbox))));
                };
                take(world, &claim, &seen, &reservation).await?;
            }
            Step::DropRecord(patch) => {
                let merged = writer.merge(&Key::of(&claim).name, &patch, &world.caches.claims).await;
                merged.map_err(|error| Problem::by(&error))?;
                for notes in [&mut claim.metadata.annotations, &mut claim.metadata.labels] {
                    notes.as_mut().and_then(|notes| notes.remove(key::SANDBOX_NAME));
                }
            }
            Step::Create(object) => create(world, &claim, &object).await?,
            Step::Adopt => {
                match world.candidates.reserve(&claim, settings.ready_only, plan::is_acceptable(&seen)) {
                    Choice::Reserved(reservation) => adopt(world, &claim, &seen, reservation).await?,
                    choice => {
                        let patience = plan::patience(&claim, settings.candidate_grace, now);
                        if let Some(left) = patience.filter(|_| matches!(choice, Choice::Pending)) {
                            return Ok(Resolved::Wait(left.min(WAIT)));
                        }
                        create(world, &claim, &plan::cold(&claim, &seen)?).await?;
                    }
                }
            }
        }
    }
    Err(Problem::Conflict("the Sandboxes for this claim were taken by others".to_owned()))
}

/// Takes a member of the pool and tells of it.
async fn adopt(world: &World, claim: &Claim, seen: &Seen, reservation: Reservation) -> Result<(), Problem> {
    let member = reservation.sandbox.clone();
    if let Taken::Lost = take(world, claim, seen, &reservation).await? {
        return Ok(());
    }
    // As it is now; the pool is the one that it left.
    let taken = world.caches.sandboxes.get(&Key::of(&*member)).unwrap_or_else(|| member.clone());
    let pool = pool_of(&member).map(|pool| pool.name).unwrap_or_default();
    world.config.claim_metrics.served(&taken, &pool);
    let note = format!("Adopted warm pool Sandbox {:?}", name(&member));
    tell(world, claim, "SandboxAdopted", "Adoption", note);
    Ok(())
}

/// Transfers a member to a claim. When others write to it at the same time, a fresh look tells whose it is.
async fn take(
    world: &World,
    claim: &Claim,
    seen: &Seen,
    reservation: &Reservation,
) -> Result<Taken, Problem> {
    let writer = writer(world, claim);
    let sandboxes = &world.caches.sandboxes;
    let mut member = reservation.sandbox.clone();
    let name = name(&member).to_owned();
    let pool = pool_of(&member);
    for _ in 0..TRIES {
        let patch = transfer::transfer(claim, &member, seen.template.as_deref())?;
        match writer.merge(&name, &patch, sandboxes).await {
            Ok(()) => return Ok(Taken::Ours),
            Err(error) if matches!(Refused::by(&error), Refused::Conflict | Refused::NotFound) => {}
            Err(error) => return Err(Problem::by(&error)),
        }
        let fresh = writer.refresh(&name, sandboxes).await.map_err(|error| Problem::by(&error))?;
        let Some(fresh) = fresh else { return Ok(Taken::Lost) };
        if ownership(&*fresh, claim.metadata.uid.as_deref().unwrap_or_default()) == Ownership::Owned {
            return Ok(Taken::Ours);
        }
        if fresh.metadata.uid != member.metadata.uid || !is_adoptable(&fresh) || pool_of(&fresh) != pool {
            return Ok(Taken::Lost);
        }
        member = fresh;
    }
    Err(Problem::Conflict(format!("Sandbox {name:?} could not be taken")))
}

async fn create(world: &World, claim: &Claim, object: &Value) -> Result<(), Problem> {
    let created = writer(world, claim).create(object, &world.caches.sandboxes).await;
    match created {
        Ok(()) => {
            let key = Key::of(claim);
            if let Some(sandbox) = world.caches.sandboxes.get(&key) {
                world.config.claim_metrics.served(&sandbox, &claim.spec.warm_pool_ref.name);
            }
            tell(
                world,
                claim,
                "SandboxProvisioned",
                "Provisioning",
                format!("Created Sandbox {:?}", key.name),
            );
            Ok(())
        }
        // Our copy lagged; it has learned of the Sandbox by now, so that the next step decides with it.
        Err(error) if Refused::by(&error) == Refused::Conflict => Ok(()),
        Err(error) => Err(Problem::by(&error)),
    }
}

/// Writes the status, unless somebody else has changed the claim since it was seen. Whether it was written.
pub async fn write_status(world: &World, claim: &Claim, status: &ClaimStatus) -> Result<bool, kube::Error> {
    if claim.status.as_ref() == Some(status) {
        return Ok(true);
    }
    let Identity { name, resource_version, .. } = Identity::of(claim);
    let patch = judge::patch(status);
    let written =
        writer(world, claim).merge_status_of(&name, &resource_version, &patch, &world.caches.claims).await;
    match written {
        Ok(()) => Ok(true),
        // Their change is on its way to us, and wakes the claim.
        Err(error) if Refused::by(&error) == Refused::Conflict => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives back what a claim controls beside the Sandbox that its status names.
pub async fn give_back_surplus(world: &World, claim: &Claim) -> Result<(), kube::Error> {
    if plan::surplus(claim, &world.observe(claim)).is_empty() {
        return Ok(());
    }
    // It hardly ever happens, and what is deleted is gone: the API server itself says which one is named.
    let fresh = writer(world, claim).refresh(&Key::of(claim).name, &world.caches.claims).await?;
    let same = fresh.filter(|fresh| fresh.metadata.uid == claim.metadata.uid);
    let doomed = same.map(|claim| plan::surplus(&claim, &world.observe(&claim))).unwrap_or_default();
    delete_sandboxes(world, claim, doomed).await
}

/// Deletes Sandboxes that a claim controls; the first refusal is returned after all were tried.
pub async fn delete_sandboxes(
    world: &World,
    claim: &Claim,
    doomed: Vec<Identity>,
) -> Result<(), kube::Error> {
    let writer = writer(world, claim);
    let mut result = Ok(());
    for identity in doomed {
        result = result.and(writer.delete(identity, &world.caches.sandboxes).await);
    }
    result
}

/// Deletes a claim whose time is up; garbage collection takes its Sandbox.
pub async fn delete_claim(
    world: &World,
    claim: &Claim,
    policy: ClaimShutdownPolicy,
) -> Result<(), kube::Error> {
    tell(world, claim, "ClaimExpired", "Deleting", format!("Deleting Claim (ShutdownPolicy={policy:?})"));
    let foreground = policy == ClaimShutdownPolicy::DeleteForeground;
    let propagation = foreground.then_some(PropagationPolicy::Foreground);
    writer(world, claim).delete_with(Identity::of(claim), propagation, &world.caches.claims).await
}

/// Removes the NetworkPolicy that older controllers made for each claim.
pub async fn drop_legacy_policy(world: &World, claim: &Claim) {
    let Key { namespace, name } = Key::of(claim);
    let key = Key::new(&namespace, &asb_types::name::network_policy(&name));
    let Some(policy) = world.caches.network_policies.get(&key) else { return };
    if ownership(&*policy, claim.metadata.uid.as_deref().unwrap_or_default()) != Ownership::Owned {
        return;
    }
    let deleted = writer(world, claim).delete(Identity::of(&*policy), &world.caches.network_policies).await;
    if let Err(error) = deleted {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "old NetworkPolicy of the claim not deleted"
        );
    }
}

/// Notes on the claim when it was seen and when it was Ready.
pub async fn annotate(
    world: &World,
    claim: &Claim,
    seen: Timestamp,
    ready: Timestamp,
) -> Result<(), kube::Error> {
    let notes = claim.metadata.annotations.as_ref();
    let noted = |key: &str| notes.is_some_and(|notes| notes.get(key).is_some_and(|value| !value.is_empty()));
    let mut patch = json!({key::CLAIM_FIRST_READY_AT: ready.to_string()});
    if !noted(key::CONTROLLER_FIRST_OBSERVED_AT) {
        patch[key::CONTROLLER_FIRST_OBSERVED_AT] = json!(seen.to_string());
    }
    let patch = json!({"metadata": {"annotations": patch}});
    writer(world, claim).merge(&Key::of(claim).name, &patch, &world.caches.claims).await
}

pub fn tell(world: &World, claim: &Claim, reason: &'static str, action: &'static str, note: String) {
    world.events.record(claim, &Event { kind: Type::Normal, reason, action, note });
}

fn writer<'a>(world: &'a World, claim: &'a Claim) -> Writer<'a> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    Writer { client: &world.client, namespace, manager: REPORTER }
}

fn name(sandbox: &Sandbox) -> &str {
    sandbox.metadata.name.as_deref().unwrap_or_default()
}
