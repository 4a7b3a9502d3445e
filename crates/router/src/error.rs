//! Everything a caller can be refused for, and the one place where that becomes a response.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

/// Why a request does not reach a sandbox. The `Display` text is the `detail` that callers see.
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
    #[error("CONNECT is not supported: name the sandbox with X-Sandbox-ID instead.")]
    MethodNotAllowed,
    #[error("unauthenticated")]
    Unauthenticated,
    #[error("Sandbox \"{sandbox}\" not found.")]
    Unknown { sandbox: String },
    #[error(
        "Sandbox \"{namespace}/{name}\" is suspended. Resume it with: kubectl patch sandbox {name} -n {namespace} \
         --type merge -p '{{\"spec\":{{\"operatingMode\":\"Running\"}}}}'"
    )]
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

impl Error {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NameMissing
            | Self::NameInvalid
            | Self::NamespaceInvalid
            | Self::PortInvalid
            | Self::PodAddressInvalid => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Unknown { .. } => StatusCode::NOT_FOUND,
            Self::Suspended { .. } | Self::NotReady { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreachable { .. } => StatusCode::BAD_GATEWAY,
            Self::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// `{"detail": …}` and a line break.
    pub fn response(&self) -> Response<Full<Bytes>> {
        let mut body = json!({ "detail": self.to_string() }).to_string();
        body.push('\n');
        let mut response = Response::new(Full::new(body.into()));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // A suspended sandbox does not wake by waiting, so only this one is worth another try soon.
        if matches!(self, Self::NotReady { .. }) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn seen(error: Error) -> (u16, String) {
        let response = error.response();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn each_error_has_its_status_and_exactly_one_key() {
        let sandbox = "ns/box".to_owned();
        for (error, status, body) in [
            (Error::NameMissing, 400, "{\"detail\":\"X-Sandbox-ID header is required.\"}\n"),
            (Error::NameInvalid, 400, "{\"detail\":\"Invalid sandbox ID format.\"}\n"),
            (Error::NamespaceInvalid, 400, "{\"detail\":\"Invalid namespace format.\"}\n"),
            (Error::PortInvalid, 400, "{\"detail\":\"Invalid port format.\"}\n"),
            (Error::PodAddressInvalid, 400, "{\"detail\":\"Invalid target IP address.\"}\n"),
            (Error::Unauthenticated, 401, "{\"detail\":\"unauthenticated\"}\n"),
            (Error::Unknown { sandbox }, 404, "{\"detail\":\"Sandbox \\\"ns/box\\\" not found.\"}\n"),
            (
                Error::Unreachable { name: "box".to_owned() },
                502,
                "{\"detail\":\"Could not connect to the backend sandbox: box\"}\n",
            ),
            (
                Error::TimedOut { name: "box".to_owned() },
                504,
                "{\"detail\":\"Timed out waiting for the backend sandbox: box\"}\n",
            ),
        ] {
            assert_eq!(seen(error).await, (status, body.to_owned()));
        }
    }

    #[tokio::test]
    async fn a_suspended_sandbox_comes_with_the_command_that_resumes_it() {
        let (status, body) =
            seen(Error::Suspended { namespace: "ns".to_owned(), name: "box".to_owned() }).await;
        assert_eq!(status, 503);
        let detail: serde_json::Value = serde_json::from_str(&body).unwrap();
        let detail = detail["detail"].as_str().unwrap();
        assert!(detail.contains(
            r#"kubectl patch sandbox box -n ns --type merge -p '{"spec":{"operatingMode":"Running"}}'"#
        ));
    }

    #[tokio::test]
    async fn a_sandbox_that_is_not_ready_says_why_and_when_to_come_again() {
        let error =
            |reason: &str| Error::NotReady { sandbox: "ns/box".to_owned(), reason: reason.to_owned() };
        assert_eq!(error("").to_string(), "Sandbox \"ns/box\" is not ready.");
        assert_eq!(error("Pod is Pending.").to_string(), "Sandbox \"ns/box\" is not ready: Pod is Pending.");
        assert_eq!(error("").response().headers()[RETRY_AFTER], "1");
    }
}
