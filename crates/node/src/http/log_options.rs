//! What a request for a log asks for, checked as kube-apiserver checks it.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;

use super::{Failure, flag};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    pub container: Option<String>,
    #[serde(deserialize_with = "flag::field")]
    pub follow: bool,
    #[serde(deserialize_with = "flag::field")]
    pub timestamps: bool,
    #[serde(deserialize_with = "flag::field")]
    pub previous: bool,
    pub tail_lines: Option<i64>,
    pub limit_bytes: Option<i64>,
    pub since_seconds: Option<i64>,
    pub since_time: Option<Timestamp>,
}

impl Options {
    /// Refuses what cannot be read, and what no log can have.
    pub fn of(pod: &str, query: Result<Query<Self>, QueryRejection>) -> Result<Self, Failure> {
        let Query(options) = query.map_err(|error| Failure::bad_request(error.body_text()))?;
        let invalid = |problem: String| Failure {
            code: StatusCode::UNPROCESSABLE_ENTITY,
            reason: "Invalid",
            message: format!("PodLogOptions \"{pod}\" is invalid: {problem}"),
        };
        let checks = [
            ("tailLines", options.tail_lines, 0, "must be greater than or equal to 0"),
            ("limitBytes", options.limit_bytes, 1, "must be greater than 0"),
            ("sinceSeconds", options.since_seconds, 1, "must be greater than 0"),
        ];
        for (field, value, least, why) in checks {
            if let Some(value) = value.filter(|value| *value < least) {
                return Err(invalid(format!("{field}: Invalid value: {value}: {why}")));
            }
        }
        if options.since_seconds.is_some() && options.since_time.is_some() {
            let why = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified";
            return Err(invalid(why.to_owned()));
        }
        Ok(options)
    }

    /// The last lines that are wanted; `None`: all.
    pub fn tail(&self) -> Option<usize> {
        self.tail_lines.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX))
    }

    /// The most bytes that are wanted.
    pub fn limit(&self) -> Option<u64> {
        self.limit_bytes.and_then(|bytes| u64::try_from(bytes).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(query: &str) -> (u16, String) {
        let uri = format!("http://x/log?{query}").parse().unwrap();
        let failure = Options::of("box", Query::try_from_uri(&uri)).unwrap_err();
        (failure.code.as_u16(), failure.message)
    }

    #[test]
    fn wrong_options_are_named() {
        for (query, said) in [
            ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
            (
                "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
                "Forbidden: at most one of `sinceTime` or `sinceSeconds`",
            ),
        ] {
            let (code, message) = refused(query);
            assert!(code == 422 && message.starts_with("PodLogOptions \"box\" is invalid: "), "{message}");
            assert!(message.contains(said), "{message}");
        }
        for (query, field) in
            [("tailLines=x", "tailLines"), ("follow=maybe", "follow"), ("sinceTime=soon", "sinceTime")]
        {
            let (code, message) = refused(query);
            assert!(code == 400 && message.contains(field), "{query}: {message}");
        }
        let uri = "http://x/log?tailLines=0&limitBytes=5&previous=True".parse().unwrap();
        let options = Options::of("box", Query::try_from_uri(&uri)).unwrap_or_default();
        assert_eq!((options.tail(), options.limit(), options.previous), (Some(0), Some(5), true));
    }
}
