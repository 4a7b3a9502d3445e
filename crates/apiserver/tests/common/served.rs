//! A server that listens, spoken to by kubectl.

use std::process::Command;

use serde_json::Value;

use super::World;

pub struct Served {
    pub world: World,
    pub serving: asb_apiserver::Serving,
}

impl Served {
    pub async fn new() -> Self {
        Self::of(World::new().await).await
    }

    pub async fn of(world: World) -> Self {
        let serving = world.server.serve(([127, 0, 0, 1], 0).into()).await.expect("it listens");
        Self { world, serving }
    }

    pub fn kubeconfig(&self) -> Value {
        serde_json::from_slice(&std::fs::read(&self.serving.kubeconfig).expect("a kubeconfig")).expect("JSON")
    }

    pub async fn client(&self, token: Option<&str>) -> kube::Client {
        let mut config = self.kubeconfig();
        if let Some(token) = token {
            config["users"][0]["user"]["token"] = token.into();
        }
        let config: kube::config::Kubeconfig = serde_json::from_value(config).expect("a kubeconfig");
        let config =
            kube::Config::from_custom_kubeconfig(config, &Default::default()).await.expect("a config");
        kube::Client::try_from(config).expect("a client")
    }

    /// Runs kubectl and returns what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> std::process::Output {
        let program = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
        Command::new(&program)
            .arg("--kubeconfig")
            .arg(&self.serving.kubeconfig)
            .arg("--cache-dir")
            .arg(self.world.dir.path().join("kubectl"))
            .args(arguments)
            .output()
            .unwrap_or_else(|error| panic!("kubectl is needed on PATH or in KUBECTL ({program:?}): {error}"))
    }

    /// Runs kubectl, which fails, and returns what it printed as the reason.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        assert!(!output.status.success(), "kubectl {arguments:?} should fail");
        String::from_utf8_lossy(&output.stderr).trim().to_owned()
    }

    pub fn write(&self, name: &str, object: &Value) -> String {
        let path = self.world.dir.path().join(name);
        std::fs::write(&path, object.to_string()).expect("written");
        path.display().to_string()
    }
}
