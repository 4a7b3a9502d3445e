//! What a kubelet does with a list of Pods, which our node is held to; [`asb_testing::pods`] has the list.

use asb_testing::Kubernetes;
use asb_testing::pods::{self, Side};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: tools/test cluster"]
async fn kubelet_does_with_every_pod_what_is_recorded() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let archives = pods::write_images(folder.path());
    let start = tokio::task::spawn_blocking(move || Kubernetes::with_node(&archives));
    let kubernetes = start.await.expect("the cluster starts");
    let program = std::env::var_os("KUBECTL").expect("KUBECTL is the path of kubectl");
    let kubectl = || {
        let mut command = tokio::process::Command::new(&program);
        command.arg("--kubeconfig").arg(&kubernetes.kubeconfig);
        command
    };
    pods::play(Side::Kubelet, kubernetes.client().await, kubectl).await;
}
