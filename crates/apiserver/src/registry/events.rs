//! Events have two faces, core and `events.k8s.io`; they are stored once, as core events.

use serde_json::{Map, Value};

/// (core name, new name)
const RENAMED: [(&str, &str); 6] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
];
const COUNT: (&str, &str) = ("count", "deprecatedCount");

pub(super) fn to_new(event: &mut Value) {
    rename(event, |core, new| (core, new));
}

pub(super) fn to_core(event: &mut Value) {
    rename(event, |core, new| (new, core));
    event["apiVersion"] = "v1".into();
}

fn rename(event: &mut Value, direction: impl Fn(&'static str, &'static str) -> (&'static str, &'static str)) {
    let Some(map) = event.as_object_mut() else { return };
    let mut renamed = Map::new();
    for (core, new) in RENAMED.into_iter().chain([COUNT]) {
        let (from, to) = direction(core, new);
        if let Some(value) = map.remove(from) {
            renamed.insert(to.into(), value);
        }
    }
    map.extend(renamed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_comes_back_as_it_went() {
        let core = json!({ "apiVersion": "v1", "kind": "Event", "involvedObject": { "name": "p" }, "message": "m",
            "reason": "R", "source": { "component": "c" }, "count": 2, "reportingComponent": "c" });
        let mut event = core.clone();
        to_new(&mut event);
        assert_eq!(event["regarding"]["name"], "p");
        assert_eq!(event["note"], "m");
        assert_eq!(event["deprecatedCount"], 2);
        to_core(&mut event);
        assert_eq!(event, core);
    }
}
