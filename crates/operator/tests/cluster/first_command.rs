//! What a user of a warm pool waits for: claim created → output of the first command, over an open connection to the
//! router. Beside it the same by the API's exec, and a command on a sandbox that has answered before.

use std::time::{Duration, Instant};

use asb_testing::{Commands, World};
use asb_types::{Claim, WarmPool};
use k8s_openapi::api::core::v1::Pod;
use kube::api::AttachParams;
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::cluster::Cluster;
use crate::numbers::{Watched, quiet, tell};
use crate::{router, stories};

/// The example whose sandboxes answer commands.
const EXAMPLE: &str = "deploy/examples/template-runtime.yaml";
const POOL: &str = "runtime";
const MEMBERS: i32 = 6;
const SAMPLES: usize = 30;

pub async fn report(cluster: &Cluster, world: &World) {
    let claims = Watched::new(world, stories::claim_is_ready);
    for file in [EXAMPLE, router::RIGHTS] {
        cluster.kubectl(&["apply", "--namespace", &world.namespace, "--filename", file]);
    }
    world.merge::<WarmPool>(POOL, json!({"spec": {"replicas": MEMBERS}})).await;
    let mut router = router::connect_client(cluster, &world.namespace);
    let [mut ready, mut first, mut again, mut exec, mut at_once] = [(); 5].map(|()| Vec::new());
    for sample in 0..SAMPLES {
        world.eventually::<WarmPool>(POOL, stories::pool_has(MEMBERS)).await;
        quiet().await;
        // The router's way and the API's in turn, each with a claim of its own.
        let (by_router, by_exec) = (format!("first-{sample}"), format!("exec-{sample}"));
        let (begun, reported, sandbox) = claim(world, &claims, &by_router).await;
        let output = run(&mut router, &sandbox);
        ready.push(reported - begun);
        first.push(output - begun);
        let begun = Instant::now();
        again.push(run(&mut router, &sandbox) - begun);

        world.eventually::<WarmPool>(POOL, stories::pool_has(MEMBERS)).await;
        quiet().await;
        let (begun, _, sandbox) = claim(world, &claims, &by_exec).await;
        exec.push(run_by_api(world, &sandbox).await - begun);
        at_once.push(fork_exec().await);
        for name in [by_router, by_exec] {
            world.delete::<Claim>(&name).await;
        }
    }
    tell("warm claim to Ready, sandboxes with sandboxd", ready);
    let (first, exec) =
        (tell("warm claim to first output, by the router", first), tell("the same by exec of the API", exec));
    println!("  the router's way takes {:.2} of the API's", first / exec);
    let (again, bare) =
        (tell("a command after that, by the router", again), tell("fork/exec of the same command", at_once));
    println!("  which is {:.1} times the command itself", again / bare);
}

/// When the claim was sent, when it was seen Ready, and its Sandbox.
async fn claim(world: &World, claims: &Watched<Claim>, name: &str) -> (Instant, Instant, String) {
    let begun = Instant::now();
    world.create::<Claim>(stories::claim(name, POOL)).await;
    let (reported, claim) = claims.ready_object(name).await;
    let bound = claim.status.and_then(|status| status.sandbox).expect("a claim that is Ready is bound");
    (begun, reported, bound.name)
}

fn run(router: &mut Commands, sandbox: &str) -> Instant {
    let (status, answer) = tokio::task::block_in_place(|| router.execute(sandbox, "echo hi"));
    assert_eq!((status, &answer["stdout"]), (200, &json!("hi\n")), "{answer}");
    Instant::now()
}

async fn run_by_api(world: &World, pod: &str) -> Instant {
    let params = AttachParams::default().stdout(true).stderr(false);
    let mut process = world.api::<Pod>().exec(pod, ["echo", "hi"], &params).await.expect("exec starts");
    let mut printed = String::new();
    process.stdout().expect("asked for").read_to_string(&mut printed).await.expect("output can be read");
    assert_eq!(printed, "hi\n");
    Instant::now()
}

async fn fork_exec() -> Duration {
    let begun = Instant::now();
    let output = tokio::process::Command::new("echo").arg("hi").output().await.expect("echo runs");
    assert!(output.status.success());
    begun.elapsed()
}
