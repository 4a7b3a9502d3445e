//! `asb migrate`: from objects stored at v1alpha1 to v1beta1.
//!
//! `bootstrap`, before the upgrade, makes the pools that claims without one will belong to. `migrate`, after it, writes
//! every object once, which stores it at v1beta1. Both may be repeated.

mod plan;

use std::process::ExitCode;

use anyhow::Context as _;
use asb_types::conversion::V1ALPHA1;
use asb_types::{EXTENSIONS_GROUP, GROUP, VERSION, key};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::args::{Migrate, Phase};
use crate::connect;

/// Objects asked for at a time.
const PAGE: u32 = 500;
/// Group, kind and plural, in the order in which they are rewritten: what others refer to comes first.
const KINDS: [(&str, &str, &str); 4] = [
    (EXTENSIONS_GROUP, "SandboxWarmPool", "sandboxwarmpools"),
    (EXTENSIONS_GROUP, "SandboxTemplate", "sandboxtemplates"),
    (GROUP, "Sandbox", "sandboxes"),
    (EXTENSIONS_GROUP, "SandboxClaim", "sandboxclaims"),
];

pub async fn run(migrate: Migrate) -> anyhow::Result<ExitCode> {
    let client = match &migrate.kubeconfig {
        Some(path) => connect::client_from(path).await?,
        None => Client::try_default().await.context("no cluster: neither in one nor a kubeconfig for one")?,
    };
    let migration = Migration { client, namespace: migrate.namespace, dry_run: migrate.dry_run };
    let failures = match migrate.phase {
        Phase::Bootstrap => migration.bootstrap().await?,
        Phase::Migrate => migration.rewrite().await?,
    };
    for failure in &failures {
        eprintln!("error: {failure}");
    }
    if failures.is_empty() && migrate.phase == Phase::Migrate && !migrate.dry_run {
        eprintln!(
            "every object is stored at {VERSION}; now remove {V1ALPHA1} from status.storedVersions of the CRDs"
        );
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Migration {
    client: Client,
    namespace: Option<String>,
    dry_run: bool,
}

impl Migration {
    /// Makes the shadow pools. Returns what an operator has to look at.
    async fn bootstrap(&self) -> anyhow::Result<Vec<String>> {
        let claims = self.list(V1ALPHA1, KINDS[3]).await.context("failed to list claims at v1alpha1")?;
        let claims: Vec<Value> = claims.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        let needed = plan::needed(claims.iter());
        let mut failures = needed.wrong;
        for (namespace, pool) in needed.named {
            if self.pools(&namespace).get_opt(&pool).await?.is_none() {
                failures.push(format!(
                    "sandboxwarmpool {namespace}/{pool} is missing, and claims name it; create it"
                ));
            }
        }
        for (namespace, template) in needed.shadow {
            if let Err(failure) = self.make_shadow_pool(&namespace, &template).await {
                failures.push(failure);
            }
        }
        Ok(failures)
    }

    async fn make_shadow_pool(&self, namespace: &str, template: &str) -> Result<(), String> {
        let pool = plan::shadow_pool(namespace, template)?;
        let pool: DynamicObject = serde_json::from_value(pool).map_err(|error| error.to_string())?;
        let (pools, name) = (self.pools(namespace), pool.name_any());
        let failed = |error: kube::Error| format!("sandboxwarmpool {namespace}/{name}: {error}");
        if let Some(found) = pools.get_opt(&name).await.map_err(failed)? {
            let found = serde_json::to_value(&found).unwrap_or_default();
            let foreign = format!(
                "sandboxwarmpool {namespace}/{name} is there but was not made by a migration; rename it"
            );
            return if plan::is_shadow(&found) { Ok(()) } else { Err(foreign) };
        }
        let options = PostParams { dry_run: self.dry_run, ..PostParams::default() };
        pools.create(&options, &pool).await.map_err(failed)?;
        println!("sandboxwarmpool {namespace}/{name} created");
        Ok(())
    }

    /// Writes every object once. Returns those that could not be written.
    async fn rewrite(&self) -> anyhow::Result<Vec<String>> {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key::STORAGE_MIGRATED_AT: now}}}));
        let options = PatchParams { dry_run: self.dry_run, ..PatchParams::default() };
        let mut failures = Vec::new();
        for kind in KINDS {
            let objects = match self.list(VERSION, kind).await {
                // An installation without extensions has only some of the kinds.
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                listed => listed.with_context(|| format!("failed to list {}", kind.2))?,
            };
            for object in objects {
                let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                let api: Api<DynamicObject> =
                    Api::namespaced_with(self.client.clone(), &namespace, &resource(VERSION, kind));
                match api.patch_metadata(&name, &options, &patch).await {
                    Ok(_) => println!("{} {namespace}/{name} rewritten", kind.1.to_lowercase()),
                    // Deleted meanwhile: nothing is left to migrate.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => {
                        failures.push(format!("{} {namespace}/{name}: {error}", kind.1.to_lowercase()))
                    }
                }
            }
        }
        Ok(failures)
    }

    fn pools(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &resource(V1ALPHA1, KINDS[0]))
    }

    async fn list(&self, version: &str, kind: (&str, &str, &str)) -> Result<Vec<DynamicObject>, kube::Error> {
        let kind = resource(version, kind);
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        };
        let (mut found, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let list = api.list(&page).await?;
            found.extend(list.items);
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(found),
            }
        }
    }
}

fn resource(version: &str, (group, kind, plural): (&str, &str, &str)) -> ApiResource {
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: format!("{group}/{version}"),
        kind: kind.into(),
        plural: plural.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        migration: Migration,
        _dir: tempfile::TempDir,
    }

    impl World {
        async fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let config = asb_apiserver::Config {
                data_dir: dir.path().into(),
                crds: asb_types::crd::all(),
                node_name: None,
            };
            let server = asb_apiserver::ApiServer::open(config).await.expect("a server");
            let client = server.client("default");
            Self { migration: Migration { client, namespace: None, dry_run: false }, _dir: dir }
        }

        async fn create(&self, version: &str, kind: (&str, &str, &str), name: &str, spec: Value) {
            let kind = resource(version, kind);
            let object = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec});
            let api: Api<DynamicObject> = Api::default_namespaced_with(self.migration.client.clone(), &kind);
            let object = serde_json::from_value(object).expect("an object");
            api.create(&PostParams::default(), &object).await.expect("it is accepted");
        }

        async fn annotation(&self, kind: (&str, &str, &str), name: &str, key: &str) -> Option<String> {
            let api: Api<DynamicObject> =
                Api::default_namespaced_with(self.migration.client.clone(), &resource(VERSION, kind));
            api.get(name).await.expect("it is there").annotations().get(key).cloned()
        }
    }

    fn claim(warmpool: &str) -> Value {
        json!({"sandboxTemplateRef": {"name": "t"}, "warmpool": warmpool})
    }

    #[tokio::test]
    async fn bootstrap_makes_a_shadow_pool_once_and_names_missing_pools() {
        let mut world = World::new().await;
        world.create(V1ALPHA1, KINDS[3], "a", claim("default")).await;
        world.create(V1ALPHA1, KINDS[3], "b", claim("gone")).await;
        world.migration.dry_run = true;
        let missing = "sandboxwarmpool default/gone is missing, and claims name it; create it";
        assert_eq!(world.migration.bootstrap().await.unwrap(), [missing]);
        assert!(
            world.migration.pools("default").get_opt("shadow-pool-t").await.unwrap().is_none(),
            "only tried"
        );
        world.migration.dry_run = false;
        for _ in 0..2 {
            assert_eq!(world.migration.bootstrap().await.unwrap(), [missing]);
        }
        let template = world.annotation(KINDS[0], "shadow-pool-t", key::MIGRATION_SOURCE_TEMPLATE).await;
        assert_eq!(template.as_deref(), Some("t"));
    }

    #[tokio::test]
    async fn bootstrap_leaves_a_pool_of_somebody_else_alone() {
        let world = World::new().await;
        world.create(V1ALPHA1, KINDS[3], "a", claim("none")).await;
        let pool = json!({"replicas": 1, "sandboxTemplateRef": {"name": "t"}});
        world.create(V1ALPHA1, KINDS[0], "shadow-pool-t", pool).await;
        let failures = world.migration.bootstrap().await.unwrap();
        assert!(failures[0].contains("not made by a migration"), "{failures:?}");
    }

    #[tokio::test]
    async fn migrate_touches_every_object() {
        let mut world = World::new().await;
        let pod = json!({"podTemplate": {"spec": {"containers": []}}});
        world.create(V1ALPHA1, KINDS[2], "s", pod.clone()).await;
        world.create(VERSION, KINDS[1], "t", pod).await;
        world.create(V1ALPHA1, KINDS[3], "c", claim("p")).await;
        let elsewhere = Migration { namespace: Some("kube-system".into()), ..world.migration };
        assert_eq!(elsewhere.rewrite().await.unwrap(), Vec::<String>::new());
        world.migration = Migration { namespace: None, ..elsewhere };
        assert_eq!(world.annotation(KINDS[2], "s", key::STORAGE_MIGRATED_AT).await, None);
        assert_eq!(world.migration.rewrite().await.unwrap(), Vec::<String>::new());
        for (kind, name) in [(KINDS[2], "s"), (KINDS[1], "t"), (KINDS[3], "c")] {
            assert!(world.annotation(kind, name, key::STORAGE_MIGRATED_AT).await.is_some(), "{name}");
        }
    }
}
