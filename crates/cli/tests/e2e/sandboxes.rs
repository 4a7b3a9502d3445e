//! Sandboxes over the API, as a program uses them: created, waited for, run in, deleted.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, ensure};
use asb_types::{Sandbox, SandboxSpec};
use futures::future::{Either, select};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{AttachParams, DeleteParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

/// The longest that one of these may take when hundreds happen at once on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub struct Sandboxes {
    pub objects: Api<Sandbox>,
    pub pods: Api<Pod>,
    pub claims: Api<PersistentVolumeClaim>,
}

impl Sandboxes {
    pub fn new(client: &Client) -> Self {
        Self {
            objects: Api::namespaced(client.clone(), "default"),
            pods: Api::namespaced(client.clone(), "default"),
            claims: Api::namespaced(client.clone(), "default"),
        }
    }

    /// Creates one that idles.
    pub async fn create(&self, name: &str) -> anyhow::Result<()> {
        self.create_from(name, json!({"name": "main", "image": "host"}), json!(null)).await
    }

    /// Creates one that idles and has a volume at `/data`, of the claim `data-NAME`.
    pub async fn create_with_volume(&self, name: &str) -> anyhow::Result<()> {
        let mounts = json!([{"name": "data", "mountPath": "/data"}]);
        let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
        let claims = json!([{"metadata": {"name": "data"}, "spec": claim}]);
        self.create_from(name, json!({"name": "main", "image": "host", "volumeMounts": mounts}), claims).await
    }

    async fn create_from(&self, name: &str, container: Value, claims: Value) -> anyhow::Result<()> {
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
        let spec = json!({"podTemplate": {"spec": spec}, "volumeClaimTemplates": claims});
        let spec: SandboxSpec = serde_json::from_value(spec)?;
        self.objects.create(&PostParams::default(), &Sandbox::new(name, spec)).await?;
        Ok(())
    }

    /// Creates a claim, and a Pod of its own that idles and has its volume at `/data`. Returns the claim's UID.
    pub async fn create_pod(
        &self,
        name: &str,
        class: &str,
        clone_of: Option<&str>,
    ) -> anyhow::Result<String> {
        let source = clone_of.map(|name| json!({"kind": "PersistentVolumeClaim", "name": name}));
        let claim = json!({"metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}},
            "storageClassName": class, "dataSource": source,
        }});
        let claim = self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        let mounts = json!([{"name": "data", "mountPath": "/data"}]);
        let pod = json!({"metadata": {"name": name}, "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "host", "volumeMounts": mounts}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        }});
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        claim.metadata.uid.context("a claim has a UID")
    }

    pub async fn pod_ready(&self, name: &str) -> anyhow::Result<()> {
        let ready = |pod: Option<&Pod>| {
            let conditions = pod.and_then(|it| it.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|it| it.type_ == "Ready" && it.status == "True"))
        };
        in_time(name, "becomes Ready", await_condition(self.pods.clone(), name, ready)).await?;
        Ok(())
    }

    /// Deletes a Pod and its claim, if they are there.
    pub async fn delete_pod(&self, name: &str) -> anyhow::Result<()> {
        let params = DeleteParams::default();
        let deleted =
            [self.pods.delete(name, &params).await.err(), self.claims.delete(name, &params).await.err()];
        for error in deleted.into_iter().flatten() {
            match error {
                kube::Error::Api(status) if status.is_not_found() => {}
                error => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until neither the Pod nor its claim is there.
    pub async fn pod_gone(&self, name: &str) -> anyhow::Result<()> {
        let no_pod = |pod: Option<&Pod>| pod.is_none();
        in_time(name, "goes", await_condition(self.pods.clone(), name, no_pod)).await?;
        let no_claim = |claim: Option<&PersistentVolumeClaim>| claim.is_none();
        in_time(name, "takes its claim with it", await_condition(self.claims.clone(), name, no_claim))
            .await?;
        Ok(())
    }

    /// Deletes the claim of a sandbox, which uses it; its data has to stay.
    pub async fn delete_claim(&self, name: &str) -> anyhow::Result<()> {
        self.claims.delete(&format!("data-{name}"), &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn ready(&self, name: &str) -> anyhow::Result<()> {
        let ready = |sandbox: Option<&Sandbox>| {
            let conditions = sandbox.and_then(|it| it.status.as_ref()).map(|status| &status.conditions);
            conditions.is_some_and(|all| all.iter().any(|it| it.type_ == "Ready" && it.status == "True"))
        };
        in_time(name, "becomes Ready", await_condition(self.objects.clone(), name, ready)).await?;
        Ok(())
    }

    /// What a script printed that succeeded inside.
    pub async fn run(&self, name: &str, script: &str) -> anyhow::Result<String> {
        let params = AttachParams::default().stdin(false).stdout(true).stderr(false);
        let run = async {
            let mut process = self.pods.exec(name, ["sh", "-c", script], &params).await?;
            let status = process.take_status().context("exec has a status")?;
            let mut stdout = process.stdout().context("exec has an output")?;
            let mut printed = String::new();
            // This output has no end when the connection breaks, but then there is no status either.
            let status = match select(pin!(stdout.read_to_string(&mut printed)), pin!(status)).await {
                Either::Left((read, status)) => read.map(|_| status)?.await,
                Either::Right((Some(status), read)) => read.await.map(|_| Some(status))?,
                Either::Right((None, _)) => None,
            };
            let status = status.and_then(|status| status.status);
            ensure!(status.as_deref() == Some("Success"), "{script:?} ended with {status:?}");
            Ok(printed)
        };
        in_time(name, "runs a script", run).await
    }

    /// Deletes one, if it is there.
    pub async fn delete(&self, name: &str) -> anyhow::Result<()> {
        match self.objects.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Ok(answer.map(|_| ())?),
        }
    }

    /// Waits until neither the Sandbox nor its Pod is there.
    pub async fn gone(&self, name: &str) -> anyhow::Result<()> {
        let no_object = |sandbox: Option<&Sandbox>| sandbox.is_none();
        in_time(name, "goes", await_condition(self.objects.clone(), name, no_object)).await?;
        let no_pod = |pod: Option<&Pod>| pod.is_none();
        in_time(name, "takes its Pod with it", await_condition(self.pods.clone(), name, no_pod)).await?;
        Ok(())
    }
}

async fn in_time<T, E>(
    name: &str,
    what: &str,
    future: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<T>
where
    E: Into<anyhow::Error>,
{
    let done = tokio::time::timeout(PATIENCE, future).await;
    done.with_context(|| format!("{name} never {what}"))?
        .map_err(Into::into)
        .with_context(|| format!("{name} never {what}"))
}

/// A number that makes a test longer: the variable `name`, or what CI has time for.
pub fn number(name: &str, short: usize) -> usize {
    std::env::var(name)
        .map_or(short, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number")))
}
