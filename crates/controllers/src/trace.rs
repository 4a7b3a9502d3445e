//! Connects the passes over an object with the trace of whoever asked for it.
//!
//! Controllers open spans in any case. Whoever exports them lends the two functions below; without an
//! exporter there is nothing to connect.

use std::collections::HashMap;
use std::fmt::Debug;

use asb_types::key;
use kube::Resource;
use tracing::Span;

use crate::object::Key;

/// What an exporter of spans can do. Headers are those of W3C trace context.
pub trait Traces: Debug + Send + Sync {
    /// Makes a span part of the trace that these headers name.
    fn join(&self, span: &Span, headers: &HashMap<String, String>);

    /// The headers that name a span; none if it is not exported.
    fn headers(&self, span: &Span) -> HashMap<String, String>;
}

/// Has a span say who made its object, if it has a field for that, and makes it part of the trace that the
/// object's annotation names.
pub fn join(traces: Option<&dyn Traces>, span: &Span, object: Option<&impl Resource>) {
    let Some(object) = object else { return };
    if let Some(creator) = creator(object) {
        span.record(key::CREATED_BY, creator);
    }
    let Some(traces) = traces else { return };
    let Some(context) = object.meta().annotations.as_ref().and_then(|notes| notes.get(key::TRACE_CONTEXT))
    else {
        return;
    };
    match serde_json::from_str(context) {
        Ok(headers) => traces.join(span, &headers),
        Err(error) => {
            tracing::warn!(object = %Key::of(object), %error, "annotation {} is not used", key::TRACE_CONTEXT);
        }
    }
}

/// Who made an object, as a span may say it: what users write is not repeated.
fn creator(object: &impl Resource) -> Option<&str> {
    let label = object.meta().labels.as_ref()?.get(key::CREATED_BY)?;
    Some(key::normalized_creator(label))
}

/// What the annotation of an object that has none should say; nothing if no trace goes on.
pub fn context(traces: Option<&dyn Traces>, span: &Span, object: &impl Resource) -> Option<String> {
    let traces = traces?;
    if object.meta().annotations.as_ref().is_some_and(|notes| notes.contains_key(key::TRACE_CONTEXT)) {
        return None;
    }
    let headers = traces.headers(span);
    (!headers.is_empty()).then(|| serde_json::json!(headers).to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::object::Pod;

    #[derive(Debug, Default)]
    struct Fake {
        joined: Mutex<Vec<HashMap<String, String>>>,
    }

    impl Traces for Fake {
        fn join(&self, _: &Span, headers: &HashMap<String, String>) {
            self.joined.lock().unwrap().push(headers.clone());
        }

        fn headers(&self, _: &Span) -> HashMap<String, String> {
            HashMap::from([("traceparent".to_owned(), "00-1-2-01".to_owned())])
        }
    }

    fn object(context: Option<&str>) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.annotations =
            context.map(|context| [(key::TRACE_CONTEXT.to_owned(), context.to_owned())].into());
        pod
    }

    /// SB-111, CL-144
    #[test]
    fn span_names_a_known_creator_and_no_other() {
        let made_by = |label: &str| {
            let mut pod = object(None);
            pod.metadata.labels = Some([(key::CREATED_BY.to_owned(), label.to_owned())].into());
            creator(&pod).map(str::to_owned)
        };
        assert_eq!(made_by("go-client").as_deref(), Some("go-client"));
        assert_eq!(made_by("<script>").as_deref(), Some("unknown"));
        assert_eq!(creator(&object(None)), None);
    }

    #[test]
    fn annotation_names_the_parent_and_a_broken_one_is_ignored() {
        let fake = Fake::default();
        for context in [Some(r#"{"traceparent":"00-a-b-01"}"#), Some("{half"), Some("[1]"), None] {
            join(Some(&fake), &Span::none(), Some(&object(context)));
        }
        let joined = fake.joined.into_inner().unwrap();
        assert_eq!(joined, [HashMap::from([("traceparent".to_owned(), "00-a-b-01".to_owned())])]);
    }

    #[test]
    fn annotation_is_wanted_only_where_there_is_none_and_a_trace_goes_on() {
        let fake = Fake::default();
        let wanted = context(Some(&fake), &Span::none(), &object(None));
        assert_eq!(wanted.as_deref(), Some(r#"{"traceparent":"00-1-2-01"}"#));
        assert_eq!(context(Some(&fake), &Span::none(), &object(Some("{}"))), None);
        assert_eq!(context(None, &Span::none(), &object(None)), None);
    }
}
