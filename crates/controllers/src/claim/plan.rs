//! Decides the next step for a claim whose time is not up. Pure and total: no clock, no I/O.
//!
//! ```text
//! controls a Sandbox ───────────────► keep its metadata in line
//! another controller chose one ─────► take that one, or drop the record
//! a stranger has the claim's name ──► say so
//! sets env or volumes ──────────────► make one
//! v1alpha1, without a pool ─────────► make one
//! otherwise ────────────────────────► take a member of the pool, else make one
//! ```
//!
//! Each step changes what is seen, so that the next look finds the claim further on; a bound claim whose
//! Sandbox needs nothing is at rest.

use std::sync::Arc;
use std::time::Duration;

use asb_types::conversion::template_of_shadow_claim;
use asb_types::warm_pool::UpdateStrategyType;
use asb_types::{Claim, EXTENSIONS_GROUP, Sandbox, Template, WarmPool, condition, key};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::candidates::is_adoptable;
use super::problem::Problem;
use super::{cold, metadata, transfer};
use crate::caches::pool_of;
use crate::object::{Key, controller_of, is_kind};
use crate::warm_pool::blueprint::Blueprint;
use crate::write::Identity;

/// Everything that was seen of one claim's world.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The Sandboxes that this claim controls.
    pub owned: Vec<Arc<Sandbox>>,
    /// The Sandbox that another controller recorded for this claim.
    pub recorded: Option<Arc<Sandbox>>,
    /// The Sandbox under the claim's name, whoever controls it.
    pub named: Option<Arc<Sandbox>>,
    pub pool: Option<Arc<WarmPool>>,
    /// The pool's template; without a pool, the one that a claim of v1alpha1 names.
    pub template: Option<Arc<Template>>,
    /// Why nothing may be made from the template.
    pub refusal: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// This Sandbox serves the claim, and is as it should be.
    Rest(Arc<Sandbox>),
    /// It serves the claim, but its metadata has fallen behind.
    Follow {
        sandbox: Arc<Sandbox>,
        patch: Value,
    },
    /// Another controller had begun to take this member.
    Complete(Arc<Sandbox>),
    /// A record that leads nowhere.
    DropRecord(Value),
    /// Take a member of the pool; if there is none, make a Sandbox.
    Adopt,
    Create(Value),
}

pub fn plan(claim: &Claim, seen: &Seen, allowed_domains: &[String]) -> Result<Step, Problem> {
    metadata::validate(claim, allowed_domains)?;
    if let Some(sandbox) = bound(claim, seen) {
        let patch = transfer::follow(claim, sandbox, seen.template.as_deref())?;
        return Ok(match patch {
            Some(patch) => Step::Follow { sandbox: sandbox.clone(), patch },
            None => Step::Rest(sandbox.clone()),
        });
    }
    if let Some(step) = recorded(claim, seen) {
        return Ok(step);
    }
    if let Some(stranger) = &seen.named {
        return Err(Problem::Mistake(name_taken(claim, stranger)));
    }
    if seen.pool.is_none() {
        return cold(claim, seen).map(Step::Create);
    }
    let volumes = claim.spec.volume_claim_templates.as_deref().unwrap_or_default();
    if claim.spec.env.is_empty() && volumes.is_empty() {
        Ok(Step::Adopt)
    } else {
        cold(claim, seen).map(Step::Create)
    }
}

/// The Sandbox to make for a claim that its pool cannot serve.
pub fn cold(claim: &Claim, seen: &Seen) -> Result<Value, Problem> {
    let template = match seen.pool.as_deref() {
        Some(pool) => pool.spec.sandbox_template_ref.name.clone(),
        // Its clients know of no pool, and none has to be made for them.
        None => template_of_shadow_claim(claim)
            .ok_or_else(|| Problem::PoolNotFound(claim.spec.warm_pool_ref.name.clone()))?,
    };
    if let Some(refusal) = &seen.refusal {
        return Err(Problem::TemplateRefused(refusal.clone()));
    }
    match seen.template.as_deref() {
        Some(template) => cold::sandbox(claim, template),
        None => Err(Problem::TemplateNotFound(template)),
    }
}

/// The Sandbox that serves a claim, if one does: of several, the one that the claim's status names.
pub fn bound<'a>(claim: &Claim, seen: &'a Seen) -> Option<&'a Arc<Sandbox>> {
    let in_status = |sandbox: &Sandbox| sandbox.metadata.name.as_deref() == Some(bound_name(claim));
    let in_record = |sandbox: &Sandbox| sandbox.metadata.name.as_deref() == record(claim);
    seen.owned.iter().min_by_key(|sandbox| {
        let born = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let leaving = sandbox.metadata.deletion_timestamp.is_some();
        (!in_status(sandbox), leaving, !in_record(sandbox), born, sandbox.metadata.name.clone())
    })
}

/// The Sandbox that the status names although, as far as we see, the claim does not control it.
///
/// Our views of claims and of Sandboxes are not equally fresh. Before a claim that was told of a Sandbox gets another
/// one, the API server itself must say that the first is not, or no longer, the claim's.
pub fn doubtful<'a>(claim: &'a Claim, seen: &Seen) -> Option<&'a str> {
    let named = bound_name(claim);
    let ours = |sandbox: &Arc<Sandbox>| sandbox.metadata.name.as_deref() == Some(named);
    (!named.is_empty() && !seen.owned.iter().any(ours)).then_some(named)
}

/// Whether a claim may take this member of a pool. Under Recreate, what its pool is about to replace is not given
/// out, and without the template nobody knows.
pub fn is_acceptable<'a>(seen: &'a Seen) -> impl Fn(&Sandbox) -> bool + use<'a> {
    let strategy = seen.pool.as_deref().and_then(|pool| pool.spec.update_strategy.as_ref());
    let must_be_fresh = strategy.is_some_and(|strategy| strategy.kind == UpdateStrategyType::Recreate);
    let blueprint = seen.template.as_deref().filter(|_| must_be_fresh).map(Blueprint::of);
    let pool = seen.pool.as_deref().and_then(|pool| pool.metadata.uid.clone());
    move |sandbox| {
        // Members of an earlier pool of that name are on their way out.
        let of_pool = controller_of(sandbox).is_some_and(|owner| Some(&owner.uid) == pool.as_ref());
        let fresh = blueprint.as_ref().map_or(!must_be_fresh, |blueprint| !blueprint.is_stale(sandbox));
        of_pool && fresh
    }
}

/// Sandboxes that a claim controls and does not use: two controllers may each have taken one for it. Nobody was
/// told of the second, so it goes; but only after the status, which one of them wrote first, has settled which
/// one stays.
pub fn surplus(claim: &Claim, seen: &Seen) -> Vec<Identity> {
    let Some(kept) = bound(claim, seen) else { return Vec::new() };
    let leaving = |sandbox: &Sandbox| sandbox.metadata.deletion_timestamp.is_some();
    let settled = kept.metadata.name.as_deref() == Some(bound_name(claim)) && !leaving(kept);
    let others =
        seen.owned.iter().filter(|sandbox| sandbox.metadata.uid != kept.metadata.uid && !leaving(sandbox));
    others.filter(|_| settled).map(|sandbox| Identity::of(&**sandbox)).collect()
}

/// How long a claim may still wait for members that are about to be usable.
pub fn patience(claim: &Claim, grace: Duration, now: Timestamp) -> Option<Duration> {
    let conditions = claim.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let lost = condition::get(conditions, condition::READY).map(|ready| ready.last_transition_time.0);
    let since = lost.or_else(|| claim.metadata.creation_timestamp.as_ref().map(|time| time.0))?;
    // A time in the future is one of another clock: no age at all.
    let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    grace.checked_sub(waited).filter(|left| !left.is_zero())
}

/// What to do about the record of another controller.
fn recorded(claim: &Claim, seen: &Seen) -> Option<Step> {
    record(claim)?;
    let drop = json!({"metadata": {
        "annotations": {key::SANDBOX_NAME: null},
        "labels": {key::SANDBOX_NAME: null},
    }});
    let Some(sandbox) = &seen.recorded else { return Some(Step::DropRecord(drop)) };
    let owner = controller_of(&**sandbox)?;
    let owner_is = |kind: &str| is_kind(owner, EXTENSIONS_GROUP, kind);
    let pool = pool_of(sandbox).map(|pool| pool.name);
    if owner_is("SandboxWarmPool")
        && is_adoptable(sandbox)
        && pool.as_ref() == Some(&claim.spec.warm_pool_ref.name)
    {
        Some(Step::Complete(sandbox.clone()))
    } else if owner_is("SandboxWarmPool") || owner_is("SandboxClaim") {
        Some(Step::DropRecord(drop))
    } else {
        None
    }
}

/// The name that another controller recorded for a claim, as an annotation or, earlier, as a label.
pub fn record(claim: &Claim) -> Option<&str> {
    let note = claim.metadata.annotations.as_ref().and_then(|notes| notes.get(key::SANDBOX_NAME));
    let label = claim.metadata.labels.as_ref().and_then(|labels| labels.get(key::SANDBOX_NAME));
    note.into_iter().chain(label).map(String::as_str).find(|name| !name.is_empty())
}

/// The name of the Sandbox that the claim's status names; empty if none.
pub fn bound_name(claim: &Claim) -> &str {
    let sandbox = claim.status.as_ref().and_then(|status| status.sandbox.as_ref());
    sandbox.map_or("", |sandbox| sandbox.name.as_str())
}

fn name_taken(claim: &Claim, stranger: &Sandbox) -> String {
    let Key { name, .. } = Key::of(claim);
    let whose = match controller_of(stranger) {
        Some(owner) => format!("is controlled by {} {:?}", owner.kind, owner.name),
        None => "is controlled by nobody".to_owned(),
    };
    format!(
        "Sandbox {name:?} exists and {whose}, not by SandboxClaim {name:?}; choose another name for the claim, or \
         delete the Sandbox"
    )
}
