//! The cluster, and the programs that its operator uses.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use asb_testing::Kubernetes;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where the controller is installed, and its name there.
pub const NAMESPACE: &str = "agent-sandbox-system";
pub const CONTROLLER: &str = "agent-sandbox-controller";

pub struct Cluster {
    pub client: Client,
    kubernetes: Kubernetes,
}

impl Cluster {
    /// Starts one that has the images of the folder ASB_TEST_IMAGES.
    pub async fn start() -> Self {
        let images = std::env::var_os("ASB_TEST_IMAGES").expect("ASB_TEST_IMAGES is where the images are");
        let archives = std::fs::read_dir(images).expect("the folder of the images can be read");
        let archives: Vec<_> = archives.map(|entry| entry.expect("and so its entries").path()).collect();
        let start = tokio::task::spawn_blocking(move || Kubernetes::with_node(&archives));
        let kubernetes = start.await.expect("the cluster starts");
        Self { client: kubernetes.client().await, kubernetes }
    }

    /// Runs kubectl in the folder of the repository, and returns what it prints.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.run("KUBECTL", arguments)
    }

    /// Applies an object as a user does.
    pub fn kubectl_apply(&self, namespace: &str, object: &serde_json::Value) {
        self.apply(&object.to_string(), &["--namespace", namespace]);
    }

    /// Applies YAML that says itself where it belongs.
    pub fn kubectl_apply_text(&self, yaml: &str) {
        self.apply(yaml, &[]);
    }

    fn apply(&self, yaml: &str, more: &[&str]) {
        let file = self.dir().join("object.yaml");
        std::fs::write(&file, yaml).expect("the folder of the cluster can be written");
        self.kubectl(&[&["apply", "--filename", &file.display().to_string()], more].concat());
    }

    pub fn helm(&self, arguments: &[&str]) -> String {
        self.run("HELM", arguments)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        self.try_run(program, arguments).unwrap_or_else(|error| panic!("{program} {arguments:?}: {error}"))
    }

    /// What the program prints, or its complaint.
    fn try_run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(program).args(arguments).output().expect("the program can be run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// A program that is to be run against this cluster, in the folder of the repository.
    pub fn command(&self, program: &str) -> Command {
        let path = std::env::var_os(program).unwrap_or_else(|| panic!("{program} is the path of a program"));
        let mut command = Command::new(path);
        command.env("KUBECONFIG", &self.kubernetes.kubeconfig).env("HOME", self.dir().join("home"));
        command.current_dir(asb_testing::root());
        command
    }

    /// Seconds of processor time that the controller has used so far, as its metrics tell.
    pub async fn controller_cpu(&self) -> f64 {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/services/{CONTROLLER}:metrics/proxy/metrics");
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        let metrics = self.client.request_text(request).await.expect("the controller serves metrics");
        let used = metrics.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total "));
        used.and_then(|used| used.parse().ok()).expect("they tell of processor time")
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubernetes.kubeconfig
    }

    /// Kills one process of this name in a Pod of the cluster, with no chance to say goodbye.
    pub fn kill_one(&self, program: &str) {
        let processes = std::fs::read_dir("/proc").expect("/proc can be read").flatten();
        let found = processes.filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let command = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let cgroups = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
            let name = command.split('\0').next()?.rsplit('/').next()?;
            (name == program && cgroups.contains(&self.cgroup())).then_some(pid)
        });
        let pid = found.min().expect("the program runs in a Pod");
        let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        assert!(killed.expect("kill can be run").success());
    }

    /// What the cgroups of the node are called, on this machine.
    fn cgroup(&self) -> String {
        let name = self.dir().extension().expect("the folder of a cluster has a random suffix");
        format!("asb-cluster.{}", name.display())
    }

    /// A connection from the node, where addresses of Services and Pods lead somewhere.
    pub fn connect(&self, address: SocketAddr) -> TcpStream {
        let namespace = File::open(self.dir().join("netns")).expect("the cluster says where its network is");
        let connect = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            TcpStream::connect(address)
        };
        // A thread of its own, which ends there.
        let connected = std::thread::spawn(connect).join().expect("the thread does not panic");
        connected.unwrap_or_else(|error| panic!("{address} does not answer: {error}"))
    }

    /// What service accounts asked the API for, and what everybody wrote.
    pub fn audit_log(&self) -> PathBuf {
        self.dir().join("audit.log")
    }

    fn dir(&self) -> &Path {
        self.kubernetes.kubeconfig.parent().expect("the kubeconfig is in a folder")
    }

    /// Waits until the Pods of a Deployment that are wanted are the only ones, and ready.
    pub async fn rolled_out(&self, deployment: &str) {
        let deployment = format!("deployment/{deployment}");
        let about = ["--namespace", NAMESPACE, &deployment];
        let rollout = [&["rollout", "status", "--timeout=120s"], &about[..]].concat();
        if let Err(error) = self.try_run("KUBECTL", &rollout) {
            let log = self.try_run("KUBECTL", &[&["logs"], &about[..]].concat());
            let events = self.try_run("KUBECTL", &["events", "--namespace", NAMESPACE]);
            panic!("{error}\nlog: {log:#?}\nevents: {events:#?}");
        }
    }

    /// Stops the controller, or starts it again.
    pub async fn scale(&self, replicas: usize) {
        let replicas_flag = format!("--replicas={replicas}");
        self.kubectl(&["scale", "--namespace", NAMESPACE, "deployment", CONTROLLER, &replicas_flag]);
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        if replicas > 0 {
            let completed = await_condition(deployments, CONTROLLER, conditions::is_deployment_completed());
            completed.await.expect("the watch works");
        } else {
            let selector = format!("--selector=app={CONTROLLER}");
            self.kubectl(&[
                "wait",
                "--namespace",
                NAMESPACE,
                "--for=delete",
                "pod",
                &selector,
                "--timeout=60s",
            ]);
        }
    }

    /// All that an installation could leave in a cluster: what is in no namespace, and what is in `default`.
    pub async fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (group, version, kind) in [
            ("", "v1", "Namespace"),
            ("", "v1", "Secret"),
            ("", "v1", "ServiceAccount"),
            ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration"),
            ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration"),
            ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
            ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
            ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
        ] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let objects: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let list = objects.list(&ListParams::default()).await.expect("everything can be listed");
            let name = |object: &DynamicObject| {
                format!("{kind} {}/{}", object.namespace().unwrap_or_default(), object.name_any())
            };
            names.extend(list.items.iter().map(name));
        }
        names
    }
}
