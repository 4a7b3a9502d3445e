//! Everything a caller can be refused for, and the one place where that becomes a response.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use serde_json::json;

use crate::authorize::Refusal;
use crate::limits::Exceeded;

/// Why a request does not reach a sandbox. The `Display` text is the `detail` that callers see: the reference router's
/// words where it has some, because clients compare them. Advice goes into [`Error::hint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("X-Sandbox-ID header is required.")]
    NameMissing,
    #[error("Invalid sandbox ID format.")]
    NameInvalid,
    #[error("Invalid namespace format.")]
    NamespaceInvalid,
    #[error("Invalid port format.")]
    PortInvalid,
    #[error("Invalid target IP address.")]
    PodAddressInvalid,
    #[error("Invalid sandbox UID format.")]
    UidInvalid,
    #[error("Invalid {part} in the request path.")]
    PathInvalid { part: &'static str },
    #[error("Invalid {part} in the request host.")]
    HostInvalid { part: &'static str },
    #[error("The first label of the request host is longer than 63 characters.")]
    HostLabelTooLong,
    #[error("The Host header is given twice.")]
    HostRepeated,
    #[error("Invalid request target.")]
    TargetInvalid,
    #[error("Invalid request body.")]
    BodyInvalid,
    #[error("CONNECT is not supported.")]
    MethodNotAllowed,
    #[error("{0}")]
    Refused(Refusal),
    /// The API server could not answer whether the caller may. The text is for the caller and names no token.
    #[error("{0}")]
    ReviewFailed(String),
    #[error("{0}")]
    Exceeded(Exceeded),
    #[error("Sandbox \"{sandbox}\" not found.")]
    Unknown { sandbox: String },
    #[error("Sandbox \"{namespace}/{name}\" is suspended.")]
    Suspended { namespace: String, name: String },
    #[error("Sandbox \"{sandbox}\" is not ready{}.", suffix(.reason))]
    NotReady { sandbox: String, reason: String },
    #[error("Could not connect to the backend sandbox: {name}")]
    Unreachable { name: String },
    #[error("Timed out waiting for the backend sandbox: {name}")]
    TimedOut { name: String },
}

fn suffix(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {}", reason.trim_end_matches('.')) }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Exceeded> for Error {
    fn from(exceeded: Exceeded) -> Self {
        Self::Exceeded(exceeded)
    }
}

impl Error {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NameMissing
            | Self::NameInvalid
            | Self::NamespaceInvalid
            | Self::PortInvalid
            | Self::PodAddressInvalid
            | Self::UidInvalid
            | Self::PathInvalid { .. }
            | Self::HostInvalid { .. }
            | Self::HostLabelTooLong
            | Self::HostRepeated
            | Self::TargetInvalid
            | Self::BodyInvalid => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Refused(refusal) => refusal.status(),
            Self::ReviewFailed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Exceeded(exceeded) => exceeded.status(),
            Self::Unknown { .. } => StatusCode::NOT_FOUND,
            Self::Suspended { .. } | Self::NotReady { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreachable { .. } => StatusCode::BAD_GATEWAY,
            Self::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// What the caller can do about it.
    pub fn hint(&self) -> Cow<'static, str> {
        const LABEL: &str = "Use lower-case letters, digits and inner dashes, at most 63 characters.";
        match self {
            Self::NameMissing => "Set X-Sandbox-ID to the name of the Sandbox object.".into(),
            Self::NameInvalid => format!("Check X-Sandbox-ID. {LABEL}").into(),
            Self::NamespaceInvalid => format!("Check X-Sandbox-Namespace. {LABEL}").into(),
            Self::PortInvalid => "Set X-Sandbox-Port to a number between 1 and 65535.".into(),
            Self::PodAddressInvalid => {
                "Leave X-Sandbox-Pod-IP out: the router finds the Pod by the sandbox's name.".into()
            }
            Self::UidInvalid => "Set X-Sandbox-UID to the metadata.uid of the Sandbox object, or leave it out.".into(),
            Self::PathInvalid { .. } => {
                "The path has the form <prefix>/<namespace>/<sandbox>/<port>/<rest>.".into()
            }
            Self::HostInvalid { .. } => "The host has the form <port>-<sandbox>.<namespace>.<domain>.".into(),
            Self::HostLabelTooLong => {
                "DNS allows 63 characters for <port>-<sandbox>: use the path form \
                 <prefix>/<namespace>/<sandbox>/<port>/ or the X-Sandbox-* headers instead."
                    .into()
            }
            Self::HostRepeated => "Send one Host header: a proxy in front may have read the other one.".into(),
            Self::TargetInvalid => "Send the path, or the whole URL, in the first line of the request.".into(),
            Self::BodyInvalid => {
                "The body ended early, or its chunks or length are not what the headers say.".into()
            }
            Self::MethodNotAllowed => "Name the sandbox with X-Sandbox-ID and send the request itself.".into(),
            Self::Refused(refusal) => refusal.hint().into(),
            Self::ReviewFailed(_) => {
                "The Kubernetes API did not answer the router's review. Try again; if it stays, check that the \
                 router may create tokenreviews and subjectaccessreviews."
                    .into()
            }
            Self::Exceeded(exceeded) => exceeded.hint(),
            Self::Unknown { .. } => {
                "Check the name and the namespace with: kubectl get sandboxes -A. A UID, in X-Sandbox-UID or in a token, \
                 does not reach a newer sandbox of the same name."
                    .into()
            }
            Self::Suspended { namespace, name } => format!(
                "Resume it with: kubectl patch sandbox {name} -n {namespace} --type merge \
                 -p '{{\"spec\":{{\"operatingMode\":\"Running\"}}}}'"
            )
            .into(),
            Self::NotReady { .. } => "Try again in a moment.".into(),
            Self::Unreachable { .. } => {
                "Check that a server inside the sandbox listens on this port on all addresses.".into()
            }
            Self::TimedOut { .. } => "Raise X-Sandbox-Timeout, or check the server inside the sandbox.".into(),
        }
    }

    /// `{"detail": …, "hint": …}` and a line break.
    pub fn response(&self) -> Response<Bytes> {
        let mut body = json!({ "detail": self.to_string(), "hint": self.hint() }).to_string();
        body.push('\n');
        let mut response = Response::new(Bytes::from(body));
        let status = self.status();
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    /// The same for a gRPC client, which reads neither the HTTP status nor a JSON body.
    pub fn grpc_response(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(self.grpc_status()));
        let mut message = format!("{self} {}", self.hint());
        // It repeats what a controller says of a sandbox, and clients take 8 KiB of headers.
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        let message = percent_encode(message.as_bytes(), GRPC_MESSAGE).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert("grpc-message", message);
        }
        response
    }

    /// The codes of `google.rpc.Code`.
    fn grpc_status(&self) -> u16 {
        match self.status() {
            StatusCode::BAD_REQUEST => 3,
            StatusCode::GATEWAY_TIMEOUT => 4,
            StatusCode::NOT_FOUND => 5,
            StatusCode::FORBIDDEN => 7,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => 8,
            StatusCode::METHOD_NOT_ALLOWED => 12,
            StatusCode::INTERNAL_SERVER_ERROR => 13,
            StatusCode::UNAUTHORIZED => 16,
            _ => 14,
        }
    }

    /// Seconds after which the same request may succeed. A suspended sandbox does not wake by waiting.
    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::NotReady { .. } => Some(1),
            Self::Exceeded(exceeded) => exceeded.retry_after(),
            _ => None,
        }
    }
}

const LONGEST_MESSAGE: usize = 1024;
/// What a `grpc-message` has in percent encoding.
const GRPC_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn seen(error: Error) -> (u16, String, String) {
        let response = error.response();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let status = response.status().as_u16();
        let body = response.into_body();
        assert!(body.ends_with(b"}\n"));
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body.as_object().unwrap().len(), 2, "{body}");
        let text = |key: &str| body[key].as_str().unwrap().to_owned();
        assert!(!text("hint").is_empty());
        (status, text("detail"), text("hint"))
    }

    #[test]
    fn each_error_has_its_status_and_the_reference_routers_detail() {
        for (error, status, detail) in [
            (Error::NameMissing, 400, "X-Sandbox-ID header is required."),
            (Error::NameInvalid, 400, "Invalid sandbox ID format."),
            (Error::NamespaceInvalid, 400, "Invalid namespace format."),
            (Error::PortInvalid, 400, "Invalid port format."),
            (Error::PodAddressInvalid, 400, "Invalid target IP address."),
            (Error::PathInvalid { part: "port" }, 400, "Invalid port in the request path."),
            (Error::HostInvalid { part: "port" }, 400, "Invalid port in the request host."),
            (Refusal::NoCredentials.into(), 401, "unauthenticated"),
            (Refusal::OtherSandbox.into(), 403, "forbidden"),
            (Error::ReviewFailed("tokenreview: timed out".to_owned()), 500, "tokenreview: timed out"),
            (Error::Unknown { sandbox: "ns/box".to_owned() }, 404, "Sandbox \"ns/box\" not found."),
            (
                Error::Unreachable { name: "box".to_owned() },
                502,
                "Could not connect to the backend sandbox: box",
            ),
            (
                Error::TimedOut { name: "box".to_owned() },
                504,
                "Timed out waiting for the backend sandbox: box",
            ),
        ] {
            let (got, text, _) = seen(error);
            assert_eq!((got, text.as_str()), (status, detail));
        }
    }

    #[test]
    fn a_grpc_client_gets_a_grpc_status() {
        for (error, status) in [
            (Error::NameMissing, "3"),
            (Refusal::NoCredentials.into(), "16"),
            (Error::Unknown { sandbox: "ns/box".to_owned() }, "5"),
            (Error::Unreachable { name: "box".to_owned() }, "14"),
            (Error::TimedOut { name: "box".to_owned() }, "4"),
        ] {
            let response = error.grpc_response();
            assert_eq!(
                (response.status().as_u16(), &response.headers()["grpc-status"]),
                (200, &status.parse().unwrap())
            );
            assert!(response.headers()["grpc-message"].to_str().unwrap().starts_with(&error.to_string()));
        }
    }

    #[test]
    fn a_grpc_message_has_a_length_that_clients_take() {
        let error = Error::NotReady { sandbox: "ns/box".to_owned(), reason: "\u{e9}".repeat(20_000) };
        assert!(error.grpc_response().headers()["grpc-message"].len() <= 3 * LONGEST_MESSAGE);
    }

    #[test]
    fn only_an_unauthenticated_caller_is_asked_for_a_token() {
        let asks = |error: Error| error.response().headers().contains_key(WWW_AUTHENTICATE);
        assert!(asks(Refusal::NoCredentials.into()));
        assert!(!asks(Refusal::OtherSandbox.into()));
        assert!(!asks(Error::NameMissing));
    }

    #[test]
    fn a_suspended_sandbox_comes_with_the_command_that_resumes_it() {
        let (status, _, hint) = seen(Error::Suspended { namespace: "ns".to_owned(), name: "box".to_owned() });
        assert_eq!(status, 503);
        assert!(hint.contains(
            r#"kubectl patch sandbox box -n ns --type merge -p '{"spec":{"operatingMode":"Running"}}'"#
        ));
    }

    #[test]
    fn a_sandbox_that_is_not_ready_says_why_and_when_to_try_again() {
        let error =
            |reason: &str| Error::NotReady { sandbox: "ns/box".to_owned(), reason: reason.to_owned() };
        assert_eq!(error("").to_string(), "Sandbox \"ns/box\" is not ready.");
        assert_eq!(error("Pod is Pending.").to_string(), "Sandbox \"ns/box\" is not ready: Pod is Pending.");
        assert_eq!(error("").response().headers()[RETRY_AFTER], "1");
    }
}
