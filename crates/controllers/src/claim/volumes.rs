//! The volume claim templates of a Sandbox that is made for a claim: the template's and the claim's.

use std::collections::BTreeSet;

use asb_types::VolumeClaimTemplate;
use asb_types::template::InjectionPolicy;

use super::problem::Problem;

/// Both lists as one, as far as the template's policy allows.
pub fn combined(
    template: &[VolumeClaimTemplate],
    claim: &[VolumeClaimTemplate],
    policy: InjectionPolicy,
) -> Result<Vec<VolumeClaimTemplate>, Problem> {
    check("the template", template)?;
    check("the claim", claim)?;
    if claim.is_empty() {
        return Ok(template.to_vec());
    }
    let clash = claim.iter().find(|wanted| template.iter().any(|known| name(known) == name(wanted)));
    match (policy, clash) {
        (InjectionPolicy::Disallowed, _) => Err(Problem::VolumeClaims(
            "volumeClaimTemplates of a claim are not allowed: the template's volumeClaimTemplatesPolicy is \
             Disallowed; it must be Allowed or Overrides"
                .to_owned(),
        )),
        (InjectionPolicy::Allowed, Some(clash)) => Err(Problem::VolumeClaims(format!(
            "volumeClaimTemplates {:?} is in the template as well; the template's volumeClaimTemplatesPolicy must be \
             Overrides",
            name(clash)
        ))),
        (InjectionPolicy::Allowed | InjectionPolicy::Overrides, _) => {
            let replacement = |known: &VolumeClaimTemplate| {
                claim.iter().find(|wanted| name(wanted) == name(known)).unwrap_or(known).clone()
            };
            let new = claim.iter().filter(|wanted| template.iter().all(|known| name(known) != name(wanted)));
            Ok(template.iter().map(replacement).chain(new.cloned()).collect())
        }
    }
}

fn check(whose: &str, list: &[VolumeClaimTemplate]) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    for (at, entry) in list.iter().enumerate() {
        if name(entry).is_empty() {
            let why = format!("volumeClaimTemplates[{at}] of {whose} has no metadata.name");
            return Err(Problem::VolumeClaims(why));
        }
        if !seen.insert(name(entry)) {
            let why = format!("volumeClaimTemplates of {whose} has the name {:?} twice", name(entry));
            return Err(Problem::VolumeClaims(why));
        }
    }
    Ok(())
}

fn name(template: &VolumeClaimTemplate) -> &str {
    &template.metadata.name
}
