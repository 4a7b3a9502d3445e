//! Names of children and the hash that labels them.

/// 32-bit FNV-1a of the name, as 8 hex digits. A label value, never an identity: names may collide.
pub fn name_hash(name: &str) -> String {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// The PVC that a volume claim template makes for a Sandbox.
pub fn volume_claim(template: &str, sandbox: &str) -> String {
    format!("{template}-{sandbox}")
}

/// The NetworkPolicy that a template keeps for the Pods made from it.
pub fn network_policy(template: &str) -> String {
    format!("{template}-network-policy")
}

/// The DNS name of a Sandbox's Service.
pub fn service_fqdn(service: &str, namespace: &str, cluster_domain: &str) -> String {
    format!("{service}.{namespace}.svc.{cluster_domain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SB-092, TP-08
    #[test]
    fn hash_is_zero_padded_fnv1a() {
        for (name, hash) in [
            ("", "811c9dc5"),
            ("a", "e40c292c"),
            ("my-sandbox", "374de8f5"),
            ("sandbox-name", "ab179450"),
            ("test-template", "69155462"),
            ("test-pool", "59733166"),
            ("my-warm-pool", "034dafb4"),
            ("my-template", "aeae83fc"),
        ] {
            assert_eq!(name_hash(name), hash, "hash of {name:?}");
        }
    }
}
