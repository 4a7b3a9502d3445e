//! How much a claimed volume is given: what its claim asks for, and more when it asks for more. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::quantity::bytes;

/// What a claim asks for. The API server lets none ask for nothing.
pub fn asked(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|it| it.get("storage").cloned()).unwrap_or_else(|| Quantity("1Gi".to_owned()))
}

/// Bytes that the volume of a claim may hold: once given, it is never less.
pub fn given(claim: &PersistentVolumeClaim) -> Option<u64> {
    bytes(&asked(claim)).max(has(claim))
}

/// What a claim with a volume is to be given beyond what it has.
pub fn growth(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let asked = asked(claim);
    has(claim).is_some_and(|has| bytes(&asked).is_some_and(|asked| asked > has)).then_some(asked)
}

fn has(claim: &PersistentVolumeClaim) -> Option<u64> {
    bytes(claim.status.as_ref()?.capacity.as_ref()?.get("storage")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(asked: &str, has: &str) -> PersistentVolumeClaim {
        let capacity = if has.is_empty() { json!({}) } else { json!({"capacity": {"storage": has}}) };
        let spec = json!({"resources": {"requests": {"storage": asked}}});
        serde_json::from_value(json!({"spec": spec, "status": capacity})).unwrap()
    }

    #[test]
    fn claim_is_given_what_it_asks_for_and_never_less_than_it_had() {
        assert_eq!(given(&claim("2Mi", "")), Some(2 << 20));
        assert_eq!(given(&claim("2Mi", "1Mi")), Some(2 << 20));
        assert_eq!(given(&claim("1Mi", "2Mi")), Some(2 << 20));
    }

    #[test]
    fn only_a_claim_with_a_volume_grows() {
        let growth = |asked, has| growth(&claim(asked, has)).map(|it| it.0);
        assert_eq!(growth("2Mi", "1Mi").as_deref(), Some("2Mi"));
        assert_eq!(growth("2Mi", ""), None);
        assert_eq!(growth("2Mi", "2097152"), None, "the same in other words");
        assert_eq!(growth("1Mi", "2Mi"), None);
    }
}
