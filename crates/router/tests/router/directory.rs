//! Whom a caller can reach, and what it is told otherwise.

use std::time::Duration;

use asb_router::{Hold, Limits};
use serde_json::json;

use crate::api::{pod, sandbox};
use crate::world::{World, quick_to_refuse};

async fn ask(world: &World, headers: &str) -> (u16, String) {
    let answer = world.send(&format!("GET / HTTP/1.1\r\nHost: r\r\n{headers}"), b"").await;
    let detail = if answer.status == 418 { String::new() } else { answer.detail() };
    (answer.status, detail)
}

#[tokio::test]
async fn a_request_that_names_nothing_right_is_400() {
    let world = World::new().await;
    for (headers, detail) in [
        ("", "X-Sandbox-ID header is required."),
        ("X-Sandbox-ID: Bad\r\n", "Invalid sandbox ID format."),
        ("X-Sandbox-ID: web\r\nX-Sandbox-Namespace: bad!\r\n", "Invalid namespace format."),
        ("X-Sandbox-ID: web\r\nX-Sandbox-Port: 0\r\n", "Invalid port format."),
        ("X-Sandbox-ID: web\r\nX-Sandbox-Pod-IP: 169.254.169.254\r\n", "Invalid target IP address."),
    ] {
        assert_eq!(ask(&world, headers).await, (400, detail.to_owned()));
    }
}

#[tokio::test]
async fn a_caller_may_not_choose_an_address() {
    let world = World::new().await;
    for given in ["10.0.0.5", "10.0.0.6", "2001:db8::1"] {
        let headers = format!("X-Sandbox-ID: web\r\nX-Sandbox-Pod-IP: {given}\r\n");
        assert_eq!(ask(&world, &headers).await.0, 418, "{given}");
    }
    for (target, _) in world.dial.dials.lock().unwrap().iter() {
        assert_eq!(target.address.to_string(), "10.0.0.5", "only what the directory says is dialled");
    }
    assert_eq!(ask(&world, "X-Sandbox-ID: other\r\nX-Sandbox-Pod-IP: 10.0.0.6\r\n").await.0, 404);
}

#[tokio::test]
async fn the_token_is_asked_for_after_the_shape_and_before_the_directory() {
    let world = World::with(Some("secret"), quick_to_refuse()).await;
    let refused = (401, "unauthenticated".to_owned());
    assert_eq!(ask(&world, "X-Sandbox-ID: web\r\n").await, refused);
    assert_eq!(
        ask(&world, "X-Sandbox-ID: unknown\r\n").await,
        refused,
        "a refused caller does not learn which sandboxes exist"
    );
    assert_eq!(ask(&world, "X-Sandbox-ID: web\r\nAuthorization: Bearer wrong!\r\n").await, refused);
    assert_eq!(ask(&world, "X-Sandbox-ID: Bad\r\n").await.0, 400);
    assert_eq!(ask(&world, "X-Sandbox-ID: web\r\nAuthorization: bearer secret\r\n").await.0, 418);
    let healthy = world.send("GET /healthz HTTP/1.1\r\nHost: r\r\n", b"").await;
    assert_eq!((healthy.status, healthy.body.as_str()), (200, r#"{"status":"ok"}"#));
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_reached_says_why() {
    let world = World::new().await;
    assert_eq!(
        ask(&world, "X-Sandbox-ID: nobody\r\n").await,
        (404, "Sandbox \"default/nobody\" not found.".to_owned())
    );

    world.api.apply(sandbox("early", "Running", "Pod is Pending"));
    let early = world.eventually("early", 503).await;
    assert_eq!(early.detail(), "Sandbox \"default/early\" is not ready: Pod is Pending.");
    assert!(early.head.contains("retry-after: 1"), "{}", early.head);

    world.api.apply(sandbox("asleep", "Suspended", ""));
    let asleep = world.eventually("asleep", 503).await;
    assert_eq!(asleep.detail(), "Sandbox \"default/asleep\" is suspended.");
    assert!(asleep.json()["hint"].as_str().unwrap().starts_with("Resume it with: kubectl"));
    assert!(!asleep.head.contains("retry-after"), "waiting does not wake it");
}

/// The path of a user: the API says Ready, and the first request arrives before the router's watch has seen it.
#[tokio::test]
async fn a_request_that_is_ahead_of_the_watch_is_held_and_answered() {
    let world = World::with(None, Default::default()).await;
    let mut member = sandbox("member", "Running", "");
    member["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "pool", "uid": "pool", "controller": true,
    }]);
    let mut labelled = pod("member");
    labelled["metadata"]["labels"]["agents.x-k8s.io/warm-pool-sandbox"] = json!("pool");
    world.api.apply(member.clone());
    world.api.apply(labelled);
    world.api.apply(sandbox("asleep", "Suspended", ""));
    let claimed = async {
        // The Pod keeps the label of the pool for a moment longer; the Sandbox alone decides.
        member["metadata"]["ownerReferences"][0]["kind"] = json!("SandboxClaim");
        world.api.apply(member);
        world.api.apply(pod("created"));
        world.api.apply(sandbox("asleep", "Running", ""));
        world.api.apply(pod("asleep"));
    };
    let ((member, _), (created, _), (asleep, _), ()) = tokio::join!(
        ask(&world, "X-Sandbox-ID: member\r\n"),
        ask(&world, "X-Sandbox-ID: created\r\n"),
        ask(&world, "X-Sandbox-ID: asleep\r\n"),
        claimed,
    );
    assert_eq!((member, created, asleep), (418, 418, 418));
}

#[tokio::test]
async fn sandboxes_come_and_go_with_the_watch() {
    let world = World::new().await;
    world.api.apply(pod("late"));
    world.eventually("late", 418).await;
    world.api.delete(pod("late"));
    world.eventually("late", 404).await;
}

#[tokio::test]
async fn an_unclaimed_pool_member_is_reachable_by_uid_only() {
    let world = World::new().await;
    let mut member = pod("member");
    member["metadata"]["labels"]["agents.x-k8s.io/warm-pool-sandbox"] = json!("pool");
    world.api.apply(member);
    world.api.apply(pod("marker"));
    world.eventually("marker", 418).await;
    assert_eq!(ask(&world, "X-Sandbox-ID: member\r\n").await.0, 404);
    assert_eq!(ask(&world, "X-Sandbox-ID: member\r\nX-Sandbox-UID: uid-member\r\n").await.0, 418);
    world.api.apply(pod("member"));
    world.eventually("member", 418).await;
}

#[tokio::test]
async fn running_sandboxes_stay_reachable_while_the_api_is_gone() {
    let world = World::new().await;
    world.api.go_down();
    for _ in 0..3 {
        assert_eq!(ask(&world, "X-Sandbox-ID: web\r\n").await.0, 418);
    }
}

#[tokio::test]
async fn a_pod_that_is_replaced_while_it_is_dialled_gets_nothing_and_the_next_one_the_request() {
    let hold = Hold { watch_lag: Duration::from_secs(20), ..Hold::default() };
    let world = World::with(None, Limits { hold, ..Limits::default() }).await;
    let address = world.dial.address.lock().unwrap().take();
    let asking = ask(&world, "X-Sandbox-ID: web\r\n");
    let replacing = async {
        crate::world::eventually("the first attempt", || world.dials() > 0).await;
        world.api.delete(pod("web"));
        let mut next = pod("web");
        next["metadata"]["uid"] = json!("pod-next");
        next["status"]["podIP"] = json!("10.0.0.6");
        *world.dial.address.lock().unwrap() = address;
        world.api.apply(next);
    };
    let (answer, ()) = tokio::join!(asking, replacing);
    assert_eq!(answer.0, 418, "{}", answer.1);
    let dials = world.dial.dials.lock().unwrap();
    let (last, before) = dials.split_last().unwrap();
    assert_eq!((&*last.0.pod_uid, last.0.address.to_string()), ("pod-next", "10.0.0.6".to_owned()));
    assert!(before.iter().all(|(target, _)| &*target.pod_uid == "pod-web"), "{dials:?}");
    assert_eq!(world.inside.requests.load(std::sync::atomic::Ordering::SeqCst), 1, "nothing was sent twice");
}
