//! The list of Pods that a kubelet was watched with, on our node; [`asb_testing::pods`] has the list.

use asb_testing::pods::{self, Side};

use crate::engine::{Engine, stdout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pod_goes_the_way_it_goes_with_a_kubelet() {
    let engine = Engine::start();
    let folder = tempfile::tempdir().unwrap();
    for archive in pods::write_images(folder.path()) {
        stdout(&engine.asb(&["image", "import", archive.to_str().unwrap()]));
    }
    let kubectl = || tokio::process::Command::from(engine.kubectl_command(&[]));
    pods::play(Side::Engine, engine.client().await, kubectl).await;
    engine.stop();
}
