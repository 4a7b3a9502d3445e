//! Why a caller may not pass. The caller sees `unauthenticated` or `forbidden`, as from the reference router, and a hint.

use std::fmt;

use http::StatusCode;

/// A decision against a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    // 401
    NoCredentials,
    UnknownCredentials,
    TokenMalformed,
    SignatureInvalid,
    KeyUnknown,
    Expired,
    NotYetValid,
    NotAuthenticated,
    OtherAudience,
    // 403
    OtherSandbox,
    OtherUid,
    UidNotAllowed,
    OtherPort,
    OtherMethod,
    OtherPath,
    AmbiguousPath,
    AccessDenied,
    CrossOrigin,
    NotLocal,
}

impl Refusal {
    pub fn status(self) -> StatusCode {
        match self {
            Self::NoCredentials
            | Self::UnknownCredentials
            | Self::TokenMalformed
            | Self::SignatureInvalid
            | Self::KeyUnknown
            | Self::Expired
            | Self::NotYetValid
            | Self::NotAuthenticated
            | Self::OtherAudience => StatusCode::UNAUTHORIZED,
            Self::OtherSandbox
            | Self::OtherUid
            | Self::UidNotAllowed
            | Self::OtherPort
            | Self::OtherMethod
            | Self::OtherPath
            | Self::AmbiguousPath
            | Self::AccessDenied
            | Self::CrossOrigin
            | Self::NotLocal => StatusCode::FORBIDDEN,
        }
    }

    pub fn hint(self) -> &'static str {
        match self {
            Self::NoCredentials => "Send a token: Authorization: Bearer <token>.",
            Self::UnknownCredentials => {
                "This router does not know the token. Check that it was made for this router."
            }
            Self::TokenMalformed => "The token is damaged or cut off. Copy it whole, or make a new one.",
            Self::SignatureInvalid => {
                "The token's signature does not match. It was changed or signed with another key."
            }
            Self::KeyUnknown => "The token's key (kid) is not among the router's verification keys.",
            Self::Expired => "The token has expired. Make a new one.",
            Self::NotYetValid => "The token is not valid yet. Check its nbf and the clocks of both machines.",
            Self::NotAuthenticated => "Kubernetes does not accept the token. It may have expired.",
            Self::OtherAudience => {
                "The token is for another audience. Request one for the router's audience."
            }
            Self::OtherSandbox => "The token is for another sandbox. Check the sandbox's name and namespace.",
            Self::OtherUid => "The token is for an earlier sandbox of this name. Make a new one.",
            Self::UidNotAllowed => "Leave X-Sandbox-UID out: a v1 token names its sandbox by name.",
            Self::OtherPort => "The token is not for this port.",
            Self::OtherMethod => "The token is not for this HTTP method.",
            Self::OtherPath => "The token is not for this path.",
            Self::AmbiguousPath => {
                "The token is for a path prefix, so the path may not have dot segments, backslashes or encoded \
                 slashes, dots or percent signs."
            }
            Self::AccessDenied => {
                "The user needs the verb get (GET, HEAD, OPTIONS) or create (other methods, WebSockets) on sandboxes/proxy in \
                 agents.x-k8s.io for this sandbox."
            }
            Self::CrossOrigin => {
                "A request that is authorised by cookie must come from the sandbox's own page. Allow another page \
                 with its origin in the router's allowed origins."
            }
            Self::NotLocal => {
                "Without a token this connection takes requests to localhost, to IP addresses and to names inside a \
                 cluster only, and none that another web page has made. Use http://localhost, or send a token."
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.status() == StatusCode::UNAUTHORIZED { "unauthenticated" } else { "forbidden" })
    }
}
