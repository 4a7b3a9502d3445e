//! Why a claim does not get what it asks for, in the words that clients read.

use std::time::Duration;

use asb_types::condition::reason;

use crate::write::{self, Refused};

/// How often to look for a pool or template that is not there, or for the end of one that is in the way. The creation of
/// one that was missing wakes the claim at once; this is for the rest.
const LOOK_FOR_MISSING: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    PoolNotFound(String),
    TemplateNotFound(String),
    /// Another template of the same hash was first.
    TemplateRefused(String),
    /// `additionalPodMetadata` breaks a rule.
    InvalidMetadata(String),
    /// The template does not let claims set these environment variables.
    EnvRejected(String),
    /// The volume claim templates cannot be used, or not together.
    VolumeClaims(String),
    /// The API server will not take the Sandbox that this claim asks for.
    Invalid(String),
    /// Any other mistake of a person: only an edit of the claim, its pool or its template helps.
    Mistake(String),
    /// Others were faster, again and again.
    Conflict(String),
    /// Anything else; retried.
    Failed(String),
}

/// When a claim with a problem is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// When the claim, its pool or its template changes.
    OnChange,
    After(Duration),
    /// Soon, and later each time.
    Backoff,
}

impl Problem {
    /// What the API server's refusal of a write means for the claim.
    pub fn by(error: &kube::Error) -> Self {
        let message = write::message(error);
        match Refused::by(error) {
            Refused::Invalid => Self::Invalid(message),
            Refused::Conflict => Self::Conflict(message),
            Refused::NotFound | Refused::Failed => Self::Failed(message),
        }
    }

    pub fn reason(&self) -> &'static str {
        match self {
            Self::PoolNotFound(_) => reason::WARM_POOL_NOT_FOUND,
            Self::TemplateNotFound(_) => reason::TEMPLATE_NOT_FOUND,
            Self::InvalidMetadata(_) => reason::INVALID_METADATA,
            Self::EnvRejected(_) => reason::ENV_VARS_INJECTION_REJECTED,
            Self::VolumeClaims(_) => reason::VOLUME_CLAIM_TEMPLATES_ERROR,
            Self::Invalid(_) => reason::INVALID_CONFIGURATION,
            Self::Conflict(_) => reason::ADOPTION_CONFLICT,
            Self::TemplateRefused(_) | Self::Mistake(_) | Self::Failed(_) => reason::RECONCILER_ERROR,
        }
    }

    pub fn message(&self) -> String {
        match self {
            Self::PoolNotFound(name) => format!("SandboxWarmPool {name:?} not found"),
            Self::TemplateNotFound(name) => format!("SandboxTemplate {name:?} not found"),
            Self::InvalidMetadata(why) => format!("invalid additionalPodMetadata: {why}"),
            Self::EnvRejected(why) => format!("environment variable injection rejected: {why}"),
            Self::VolumeClaims(why) => why.clone(),
            // The API server's own words about a conflict help nobody.
            Self::Conflict(what) => format!("{what} (conflicting concurrent write); the next pass retries"),
            Self::TemplateRefused(why) | Self::Invalid(why) | Self::Mistake(why) | Self::Failed(why) => {
                format!("Error seen: {why}")
            }
        }
    }

    pub fn retry(&self) -> Retry {
        match self {
            Self::PoolNotFound(_) | Self::TemplateNotFound(_) | Self::TemplateRefused(_) => {
                Retry::After(LOOK_FOR_MISSING)
            }
            Self::Conflict(_) | Self::Failed(_) => Retry::Backoff,
            Self::InvalidMetadata(_)
            | Self::EnvRejected(_)
            | Self::VolumeClaims(_)
            | Self::Invalid(_)
            | Self::Mistake(_) => Retry::OnChange,
        }
    }
}
