//! Tells users through events when a pool cannot grow, and when it can again; once each.
//!
//! A pool has no condition for it, so the last event is the record: a controller that takes over reads it
//! and neither repeats a warning nor forgets to take it back.

use asb_types::WarmPool;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};

use super::plan::Report;
use crate::event;
use crate::object::Key;

const REPORTER: &str = "sandboxwarmpool-controller";
const NOT_PROGRESSING: &str = "WarmPoolNotProgressing";
const PROGRESSING: &str = "WarmPoolProgressing";
const REFUSED: &str = "SandboxTemplateRefused";

/// Writes the event.
pub async fn report(client: &Client, pool: &WarmPool, report: &Report) -> Result<(), kube::Error> {
    event::write(client, &event::object(REPORTER, pool, &words(report), Timestamp::now())).await
}

/// Whether the last word about this pool was that it does not progress.
pub async fn was_stuck(client: &Client, pool: &WarmPool) -> Result<bool, kube::Error> {
    let Key { namespace, .. } = Key::of(pool);
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    Ok(last_word(&events.list(&about).await?.items) == Some(NOT_PROGRESSING))
}

fn last_word(events: &[Event]) -> Option<&str> {
    let ours = events.iter().filter(|event| event.reporting_component.as_deref() == Some(REPORTER));
    let last = ours.max_by_key(|event| event.event_time.as_ref().map(|time| time.0))?;
    last.reason.as_deref()
}

fn words(report: &Report) -> event::Event {
    let (kind, reason, note) = match report {
        Report::NotProgressing { held, members, grace } => (
            event::Type::Warning,
            NOT_PROGRESSING,
            format!(
                "{held} of {members} members are unschedulable and not Ready after the grace period of {}s; \
                 they are kept, because replacements would wait as well",
                grace.as_secs()
            ),
        ),
        Report::Refused(why) => (event::Type::Warning, REFUSED, why.clone()),
        Report::Progressing => {
            (event::Type::Normal, PROGRESSING, "Warm pool is progressing again".to_owned())
        }
    };
    event::Event { kind, reason, action: "Reconciling", note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn last_event_of_ours_tells_the_state() {
        let said = |reason: &str, reporter: &str, second: i64| Event {
            reason: Some(reason.to_owned()),
            reporting_component: Some(reporter.to_owned()),
            event_time: serde_json::from_value(json!(format!("2026-01-01T00:00:{second:02}.000000Z")))
                .unwrap(),
            ..Event::default()
        };
        let mut events = vec![said(PROGRESSING, REPORTER, 1), said(NOT_PROGRESSING, REPORTER, 2)];
        assert_eq!(last_word(&events), Some(NOT_PROGRESSING));
        events.insert(0, said(PROGRESSING, REPORTER, 3));
        events.push(said("Other", "somebody", 4));
        assert_eq!(last_word(&events), Some(PROGRESSING));
        assert_eq!(last_word(&[]), None);
    }
}
