//! What operators and users of a cluster do, on a real one: kubelet, containerd, runc and gVisor, our image,
//! and a controller with no more rights than its ServiceAccount has.
//!
//! `tools/test cluster` makes the images, says where they are, and runs these.

mod audit;
mod clients;
mod cluster;
mod first_command;
mod numbers;
mod pods;
mod router;
mod stories;

use asb_testing::World;
use cluster::{CONTROLLER, Cluster};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs images and root: tools/test cluster"]
async fn manifests_install_everything_and_leave_nothing() {
    let cluster = Cluster::start().await;
    let before = cluster.names().await;
    cluster.kubectl(&["apply", "--server-side", "--filename", "deploy/install.yaml"]);
    cluster.rolled_out(CONTROLLER).await;

    let world = World::bare(cluster.client.clone()).await;
    tokio::join!(
        stories::sandbox_keeps_its_data_while_it_is_suspended(&world, None),
        stories::sandbox_keeps_its_data_while_it_is_suspended(&world, Some("gvisor")),
        stories::expired_sandbox_goes_with_everything_of_it(&world),
        stories::template_gets_its_network_policy(&world),
        stories::sandbox_adopts_what_was_prepared_for_it(&world),
        stories::pool_keeps_members_ready(&world),
    );
    stories::manifests_of_the_older_version_work(&cluster, &world).await;
    stories::claim_gets_a_warm_member_whose_pod_runs_on(&world).await;
    router::claimed_sandbox_is_reached_through_a_port_forward(&cluster, &world).await;
    stories::upgrade_of_the_controller_restarts_no_sandbox(&cluster, &world).await;
    stories::sandboxes_of_the_reference_go_on(&cluster, &world).await;

    world.remove().await;
    audit::check(&cluster).await;
    cluster.kubectl(&["delete", "--filename", "deploy/install.yaml"]);
    assert_eq!(cluster.names().await, before, "uninstalling leaves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs images and root: tools/test cluster"]
async fn the_chart_installs_upgrades_and_uninstalls() {
    let cluster = Cluster::start().await;
    let before = cluster.names().await;
    let chart = ["agent-sandbox", "deploy/helm/agent-sandbox", "--namespace", "default", "--wait"];
    let helm = |task: &str, more: &[&str]| cluster.helm(&[&[task], &chart[..], more].concat());
    helm("install", &[]);

    let world = World::bare(cluster.client.clone()).await;
    stories::sandbox_keeps_its_data_while_it_is_suspended(&world, None).await;
    let running = stories::pods(&world).await;
    helm("upgrade", &["--set", "controller.extensions=true,image.tag=next"]);
    stories::pool_keeps_members_ready(&world).await;
    stories::assert_untouched(&running, &world).await;

    world.remove().await;
    audit::assert_nothing_was_denied(&cluster);
    cluster.helm(&["uninstall", "agent-sandbox", "--namespace", "default", "--wait"]);
    // Helm leaves definitions, because Sandboxes would go with them.
    cluster.kubectl(&["delete", "--filename", "deploy/crds"]);
    assert_eq!(cluster.names().await, before, "uninstalling leaves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs images, published clients and root: tools/test cluster"]
async fn published_clients_reach_sandboxes() {
    let cluster = Cluster::start().await;
    let token = "5f0c8c1a9b7e4d2f";
    clients::install(&cluster, token);
    clients::published_clients_work(&cluster, token).await;
    audit::assert_nothing_was_denied(&cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, on an idle machine: tools/test numbers"]
async fn numbers() {
    let (cluster, world) = installed().await;
    numbers::report(&cluster, &world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, on an idle machine: tools/test numbers"]
async fn numbers_of_the_first_command() {
    let (cluster, world) = installed().await;
    first_command::report(&cluster, &world).await;
}

/// A cluster with our manifests, and a namespace on it.
async fn installed() -> (Cluster, World) {
    let cluster = Cluster::start().await;
    cluster.kubectl(&["apply", "--server-side", "--filename", "deploy/install.yaml"]);
    for deployment in [CONTROLLER, router::ROUTER] {
        cluster.rolled_out(deployment).await;
    }
    let world = World::bare(cluster.client.clone()).await;
    (cluster, world)
}
