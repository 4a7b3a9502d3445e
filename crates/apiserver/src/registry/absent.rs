//! Kinds that people expect of Kubernetes and that this machine does not run.
//!
//! They are served as empty, read-only collections, so that every client reaches the sentence that says what to use
//! instead: a kind that discovery does not know is refused by kubectl itself, without a word about why.

use crate::status::ApiError;

pub(crate) struct Absent {
    pub group: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub short: &'static [&'static str],
    instead: &'static str,
}

const SEVERAL: &str = "use a SandboxWarmPool for several that are alike, a Sandbox or a Pod for one, or `asb run --detach -- COMMAND`";

pub(crate) const ABSENT: [Absent; 8] = [
    Absent {
        group: "apps",
        plural: "deployments",
        singular: "deployment",
        kind: "Deployment",
        short: &["deploy"],
        instead: SEVERAL,
    },
    Absent {
        group: "apps",
        plural: "replicasets",
        singular: "replicaset",
        kind: "ReplicaSet",
        short: &["rs"],
        instead: SEVERAL,
    },
    Absent {
        group: "",
        plural: "replicationcontrollers",
        singular: "replicationcontroller",
        kind: "ReplicationController",
        short: &["rc"],
        instead: SEVERAL,
    },
    Absent {
        group: "apps",
        plural: "statefulsets",
        singular: "statefulset",
        kind: "StatefulSet",
        short: &["sts"],
        instead: "use a Sandbox for each replica: it keeps its name, and its volumes by spec.volumeClaimTemplates",
    },
    Absent {
        group: "apps",
        plural: "daemonsets",
        singular: "daemonset",
        kind: "DaemonSet",
        short: &["ds"],
        instead: "it is a single node, so use a Sandbox or a Pod, or `asb run --detach -- COMMAND`",
    },
    Absent {
        group: "batch",
        plural: "jobs",
        singular: "job",
        kind: "Job",
        short: &[],
        instead: "use a Pod with restartPolicy Never or OnFailure, or `asb run -- COMMAND`",
    },
    Absent {
        group: "batch",
        plural: "cronjobs",
        singular: "cronjob",
        kind: "CronJob",
        short: &["cj"],
        instead: "call `asb run -- COMMAND` from cron or a systemd timer",
    },
    Absent {
        group: "networking.k8s.io",
        plural: "ingresses",
        singular: "ingress",
        kind: "Ingress",
        short: &["ing"],
        instead: "requests reach a sandbox through the router (`asb link NAME PORT` prints an address) or by `kubectl port-forward`",
    },
];

/// The sentence about a kind that is not run here.
pub(crate) fn sentence(group: &str, plural: &str) -> Option<String> {
    let found = ABSENT.iter().find(|absent| absent.group == group && absent.plural == plural)?;
    let plural = match found.kind {
        "Ingress" => "Ingresses".to_owned(),
        kind => format!("{kind}s"),
    };
    Some(format!("this machine has no {plural}: {}", found.instead))
}

/// The answer to every attempt to write one.
pub(crate) fn refusal(group: &str, plural: &str) -> ApiError {
    ApiError::new(405, "MethodNotAllowed", sentence(group, plural).unwrap_or_default())
}
