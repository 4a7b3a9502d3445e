//! SandboxWarmPool: Sandboxes kept ready before anybody asks for one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

crate::kind::kind!(
    /// A number of Sandboxes of one template, kept ready.
    WarmPool, "SandboxWarmPool", "sandboxwarmpools", crate::EXTENSIONS_GROUP, WarmPoolSpec, status: WarmPoolStatus
);

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmPoolSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    pub sandbox_template_ref: NameRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// How long the Sandboxes of claims live whose claim does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_lifecycle: Option<ClaimLifecycle>,
}

/// What a claim without a `lifecycle` gets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimLifecycle {
    /// Time from the claim's creation until it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_after_seconds: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    #[serde(default)]
    pub shutdown_policy: crate::ClaimShutdownPolicy,
}

/// An object of the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NameRef {
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UpdateStrategy {
    #[serde(default, rename = "type")]
    pub kind: UpdateStrategyType,
    /// Only for [`UpdateStrategyType::RollingUpdate`].
    #[serde(default, rename = "rollingUpdate", skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// How far a pool may be from its size while its members are replaced.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<Amount>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<Amount>,
}

/// A number of members, or a share of the pool's size (`25%`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Number(u32),
    Percent(u32),
}

impl Amount {
    /// The number of members, of `total`.
    pub fn of(self, total: usize, round_up: bool) -> usize {
        match self {
            Amount::Number(number) => number as usize,
            Amount::Percent(percent) if round_up => (total * percent as usize).div_ceil(100),
            Amount::Percent(percent) => total * percent as usize / 100,
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Amount::Number(number) => serializer.serialize_u32(*number),
            Amount::Percent(percent) => serializer.collect_str(&format_args!("{percent}%")),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let value = serde_json::Value::deserialize(deserializer)?;
        let number = value.as_u64().map(|number| u32::try_from(number).map(Amount::Number));
        let percent = value.as_str().and_then(|text| text.strip_suffix('%'));
        match (number, percent.map(str::parse)) {
            (Some(Ok(amount)), _) => Ok(amount),
            (_, Some(Ok(percent))) => Ok(Amount::Percent(percent)),
            _ => Err(D::Error::custom(format_args!("{value} is neither a number nor a percentage"))),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum UpdateStrategyType {
    /// Members of an older blueprint are replaced at once.
    Recreate,
    /// Only new members follow the template.
    #[default]
    OnReplenish,
    /// Members of an older blueprint are replaced a few at a time.
    RollingUpdate,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmPoolStatus {
    #[serde(default)]
    pub replicas: i32,
    #[serde(default)]
    pub ready_replicas: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Members that follow the template; only where members are rolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
