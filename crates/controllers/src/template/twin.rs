//! Two templates whose names have the same hash. NetworkPolicies find Pods by that hash of 32 bits, and policies add up:
//! the Pods of each template would be given what either allows. So nothing is made from the younger one.

use std::sync::Arc;

use asb_types::Template;

use super::plan::ref_hash;
use crate::caches::{BY_TEMPLATE_HASH, Caches};
use crate::object::Key;

/// Why nothing is made from a template, if so.
pub fn refusal(caches: &Caches, template: &Template) -> Option<String> {
    let hash = Key::new(&Key::of(template).namespace, &ref_hash(template));
    refused(template, &caches.templates.find(BY_TEMPLATE_HASH, &hash.to_string()))
}

/// `alike` are the templates of the namespace whose names have the same hash, this one among them.
fn refused(template: &Template, alike: &[Arc<Template>]) -> Option<String> {
    // Younger ones come after it, and one that is being replaced under its own name is no other.
    let age = |it: &Template| (it.metadata.creation_timestamp.clone(), it.metadata.name.clone());
    let older = |it: &&Arc<Template>| it.metadata.name != template.metadata.name && age(it) < age(template);
    let other = alike.iter().find(older)?;
    Some(format!(
        "SandboxTemplate {:?} and the older {:?} have the same name hash {}, by which NetworkPolicies find Pods: nothing \
         is made from it; give it another name",
        Key::of(template).name,
        Key::of(&**other).name,
        ref_hash(template),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(name: &str, born: &str) -> Arc<Template> {
        let object = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": born},
            "spec": {"podTemplate": {"spec": {}}},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn of_two_templates_with_one_hash_the_younger_is_refused() {
        let first = template("old-slow-fast-58", "2026-01-01T00:00:00Z");
        let second = template("old-slow-code-22", "2026-01-02T00:00:00Z");
        assert_eq!(ref_hash(&first), ref_hash(&second));
        let both = [first.clone(), second.clone()];
        assert_eq!(refused(&first, &both), None);
        let told = refused(&second, &both).unwrap();
        assert!(told.contains("\"old-slow-code-22\" and the older \"old-slow-fast-58\""), "{told}");
        assert_eq!(refused(&second, std::slice::from_ref(&second)), None, "the other one is gone");
    }

    #[test]
    fn of_two_templates_of_the_same_second_exactly_one_is_refused() {
        let both =
            ["old-slow-fast-58", "old-slow-code-22"].map(|name| template(name, "2026-01-01T00:00:00Z"));
        assert_eq!(both.iter().filter(|it| refused(it, &both).is_some()).count(), 1);
    }
}
