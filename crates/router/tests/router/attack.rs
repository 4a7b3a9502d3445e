//! Callers that try to get more than they may.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use asb_router::authorize::v2::{Claims, Keys, SigningKey};
use asb_router::authorize::{Links, Secret};
use asb_router::limits::{Quota, Rate};
use asb_router::{Addressing, Authorization, Config, Quotas};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::api::{pod, sandbox};
use crate::world::{Answer, World, eventually};

/// A router with path and host routing, a shared token, v2 tokens and links.
async fn guarded() -> (World, SigningKey) {
    let key = SigningKey::generate().unwrap();
    let keys = Arc::new(Keys::new(key.public_pem().as_bytes()).unwrap());
    let authorization = Authorization {
        tokens: Secret::new("shared").into_iter().collect(),
        scoped_v2: Some(keys),
        links: Some(Links::default()),
        ..Authorization::default()
    };
    (World::configured(Config { addressing: addressing(), authorization, ..Config::default() }).await, key)
}

fn addressing() -> Addressing {
    Addressing {
        path_prefix: Some("/s".parse().unwrap()),
        domain: Some("box.example".parse().unwrap()),
        ..Addressing::default()
    }
}

async fn limited(quotas: Quotas) -> World {
    World::configured(Config { quotas, authorization: Authorization::allow_all(), ..Config::default() }).await
}

fn token(key: &SigningKey, name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    key.sign(Claims::new("default", name, now + 600)).unwrap()
}

async fn ask(world: &World, line: &str, headers: &str) -> Answer {
    world.send(&format!("{line} HTTP/1.1\r\n{headers}"), b"").await
}

#[tokio::test]
async fn a_refused_caller_learns_nothing_about_sandboxes() {
    let (world, key) = guarded().await;
    world.api.apply(sandbox("asleep", "Suspended", ""));
    world.api.apply(pod("marker"));
    let marker = "Host: r\r\nX-Sandbox-ID: marker\r\nAuthorization: Bearer shared\r\n";
    while ask(&world, "GET /", marker).await.status != 418 {}
    let foreign = token(&key, "elsewhere");
    let mut answers = Vec::new();
    for name in ["web", "asleep", "unknown"] {
        for address in ["", "X-Sandbox-Pod-IP: 10.0.0.5\r\n", "X-Sandbox-Pod-IP: 10.9.9.9\r\n"] {
            for credentials in ["", "Authorization: Bearer wrong\r\n"] {
                let headers = format!("Host: r\r\nX-Sandbox-ID: {name}\r\n{address}{credentials}");
                let answer = ask(&world, "GET /", &headers).await;
                assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
                answers.push((credentials, answer.status, answer.body));
            }
        }
        let headers = format!("Host: r\r\nX-Sandbox-ID: {name}\r\nAuthorization: Bearer {foreign}\r\n");
        assert_eq!(ask(&world, "GET /", &headers).await.status, 403);
    }
    assert!(answers.iter().all(|(_, status, _)| *status == 401));
    answers.dedup_by_key(|(credentials, _, body)| (*credentials, body.clone()));
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 2, "one answer without and one with a wrong token");
    assert_eq!(world.dials(), 1, "only for the marker");
}

#[tokio::test]
async fn a_loopback_pod_address_is_refused_before_anything_is_looked_up() {
    let (world, _) = guarded().await;
    for address in ["127.0.0.1", "::1", "169.254.169.254", "nonsense"] {
        let headers = format!("Host: r\r\nX-Sandbox-ID: web\r\nX-Sandbox-Pod-IP: {address}\r\n");
        let answer = ask(&world, "GET /", &headers).await;
        assert_eq!((answer.status, answer.detail().as_str()), (400, "Invalid target IP address."));
    }
}

#[tokio::test]
async fn a_token_for_one_sandbox_opens_no_other_by_any_way_to_name_it() {
    let (world, key) = guarded().await;
    world.api.apply(pod("other"));
    let shared = "Host: r\r\nX-Sandbox-ID: other\r\nAuthorization: Bearer shared\r\n";
    while ask(&world, "GET /", shared).await.status != 418 {}
    let bearer = format!("Authorization: Bearer {}\r\n", token(&key, "web"));
    for (line, headers, status) in [
        ("GET /", "Host: r\r\nX-Sandbox-ID: web\r\n", 418),
        ("GET /s/default/web/80/", "Host: r\r\n", 418),
        ("GET /", "Host: 80-web.default.box.example\r\n", 418),
        ("GET /", "Host: r\r\nX-Sandbox-ID: other\r\n", 403),
        ("GET /s/default/other/80/", "Host: r\r\n", 403),
        ("GET /s/default/other/80/", "Host: 80-web.default.box.example\r\nX-Sandbox-ID: web\r\n", 403),
        ("GET /", "Host: 80-other.default.box.example\r\nX-Sandbox-ID: web\r\n", 403),
        ("GET http://80-other.default.box.example/", "Host: 80-web.default.box.example\r\n", 403),
        ("GET /", "Host: 80-web.default.box.example\r\nHost: 80-other.default.box.example\r\n", 400),
        ("GET /s/default/web/80/../../other/80/", "Host: r\r\n", 418),
    ] {
        let answer = ask(&world, line, &format!("{headers}{bearer}")).await;
        assert_eq!(answer.status, status, "{line} {headers}");
    }
    // An address of another sandbox changes nothing, and its UID under this name finds nothing.
    for (uid, status) in [("uid-web", 418), ("uid-other", 404)] {
        let headers = format!(
            "Host: r\r\nX-Sandbox-ID: web\r\nX-Sandbox-UID: {uid}\r\nX-Sandbox-Pod-IP: 10.0.0.9\r\n{bearer}"
        );
        assert_eq!(ask(&world, "GET /", &headers).await.status, status, "{uid}");
    }
    let dials = world.dial.dials.lock().unwrap();
    assert!(dials.iter().skip(1).all(|(target, _)| target.name == "web"), "{dials:?}");
}

#[tokio::test]
async fn a_token_for_an_earlier_sandbox_of_the_name_finds_nothing() {
    let (world, key) = guarded().await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for (uid, status) in [("uid-web", 418), ("uid-old", 404)] {
        let claims = Claims { uid: Some(uid.to_owned()), ..Claims::new("default", "web", now + 600) };
        let bearer = format!(
            "Host: r\r\nX-Sandbox-ID: web\r\nAuthorization: Bearer {}\r\n",
            key.sign(claims).unwrap()
        );
        assert_eq!(ask(&world, "GET /", &bearer).await.status, status, "{uid}");
    }
}

#[tokio::test]
async fn a_narrow_token_is_useless_on_another_port_method_or_path_however_it_is_sent() {
    let (world, key) = guarded().await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = Claims {
        port: Some(vec![80]),
        method: Some(vec!["GET".to_owned()]),
        path: Some("/public/*".to_owned()),
        ..Claims::new("default", "web", now + 600)
    };
    let token = key.sign(claims).unwrap();
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let cookie = format!("Cookie: sandbox_token={token}\r\nOrigin: http://80-web.default.box.example\r\n");
    let host = "Host: 80-web.default.box.example\r\n";
    for credentials in [&bearer, &cookie] {
        for (line, headers, status) in [
            ("GET /public/a", host, 418),
            ("GET /public/a", "Host: 81-web.default.box.example\r\n", 403),
            ("GET /public/a", "Host: web.default.box.example\r\n", 403),
            ("HEAD /public/a", host, 403),
            ("POST /public/a", host, 403),
            ("GET /private", host, 403),
            ("GET /public", host, 403),
            ("GET /public/../private", host, 403),
            ("GET /public/%2e%2e/private", host, 403),
            ("GET /public//private", host, 403),
            ("GET /public/..;/private", host, 403),
            ("GET http://80-web.default.box.example/private", host, 403),
            ("GET /s/default/web/80/private", host, 403),
            ("GET /s/default/web/81/public/a", host, 403),
        ] {
            let answer = ask(&world, line, &format!("{headers}{credentials}")).await;
            assert_eq!(answer.status, status, "{line} {headers}{}", answer.body);
        }
        for more in [
            "X-HTTP-Method-Override: DELETE",
            "X-HTTP-Method: DELETE",
            "X_HTTP_Method_Override: DELETE",
            "X-Method-Override: DELETE",
            "X-Original-URL: /private",
            "X-Rewrite-URL: /private",
        ] {
            let answer = ask(&world, "GET /public/a", &format!("{host}{credentials}{more}\r\n")).await;
            assert_eq!(answer.status, 403, "{more}");
        }
    }
    let headers = format!("Host: r\r\nX-Sandbox-ID: web\r\nX-Sandbox-Port: 80\r\n{bearer}");
    assert_eq!(ask(&world, "GET /public/a", &headers).await.status, 418);
    let twice = format!("{headers}X-Sandbox-Port: 81\r\n");
    let answer = ask(&world, "GET /public/a", &twice).await;
    let dials = world.dial.dials.lock().unwrap();
    assert!(dials.iter().all(|(_, port)| *port == 80), "{}: {dials:?}", answer.status);
}

#[tokio::test]
async fn the_path_is_passed_on_without_its_prefix_and_byte_for_byte() {
    let (world, _) = guarded().await;
    let headers = "Host: r\r\nAuthorization: Bearer shared\r\n";
    for rest in ["/", "//x", "/a%2Fb/../%2e%2e/c?d=%20&e", "/?", "/s/default/other/1/"] {
        let answer = ask(&world, &format!("GET /s/default/web/9000{rest}"), headers).await;
        assert_eq!((answer.status, &answer.json()["target"]), (418, &rest.into()));
    }
    assert_eq!(world.dial.dials.lock().unwrap()[0].1, 9000);
    for bad in ["/s", "/s/default/web", "/s/default/we%62/80/", "/s/default/web/x/"] {
        assert_eq!(ask(&world, &format!("GET {bad}"), headers).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn no_credential_of_the_router_reaches_the_sandbox() {
    let (world, key) = guarded().await;
    let token = token(&key, "web");
    let headers = format!(
        "Host: r\r\nAuthorization: Bearer {token}\r\nProxy-Authorization: x\r\nCookie: a=1; sandbox_token={token}; b=2\r\nCookie: sandbox_token={token}\r\n"
    );
    let seen = ask(&world, &format!("GET /s/default/web/80/x?q=1&sandbox_token={token}&r"), &headers).await;
    assert_eq!(seen.json()["target"], "/x?q=1&r");
    assert!(seen.body.contains("cookie: a=1; b=2"), "{}", seen.body);
    assert!(!seen.body.contains(&token) && !seen.body.contains("authorization"), "{}", seen.body);
}

#[tokio::test]
async fn a_link_opens_a_page_and_another_page_cannot_use_its_cookie() {
    let (world, key) = guarded().await;
    let token = token(&key, "web");
    let host = "Host: 80-web.default.box.example\r\n";
    let navigate = format!("{host}Sec-Fetch-Mode: navigate\r\n");
    let opened = ask(&world, &format!("GET //x?sandbox_token={token}"), &navigate).await;
    assert_eq!(opened.status, 302);
    assert!(opened.head.contains("location: /.//x\r\n"), "{}", opened.head);
    assert!(opened.head.contains("; path=/; max-age="), "{}", opened.head);
    assert_eq!(world.dials(), 0);

    let cookie = format!("{host}Cookie: sandbox_token={token}\r\n");
    let own = "Origin: http://80-web.default.box.example\r\n";
    let foreign = "Origin: http://80-evil.default.box.example\r\n";
    let upgrade = "Upgrade: websocket\r\n";
    for (line, more, status) in [
        ("GET /", String::new(), 418),
        ("POST /", String::new(), 403),
        ("POST /", own.to_owned(), 418),
        ("POST /", foreign.to_owned(), 403),
        ("GET /", foreign.to_owned(), 403),
        ("GET /ws", format!("{upgrade}{foreign}"), 403),
        ("GET /ws", upgrade.to_owned(), 403),
    ] {
        assert_eq!(ask(&world, line, &format!("{cookie}{more}")).await.status, status, "{line} {more}");
    }
    let other = format!("Host: 80-other.default.box.example\r\nCookie: sandbox_token={token}\r\n");
    assert_eq!(ask(&world, "GET /", &other).await.status, 403, "a cookie opens its own sandbox only");
}

#[tokio::test]
async fn requests_beyond_the_limit_are_429_until_earlier_ones_end() {
    let caller = Quota { requests: Some(1), ..Quota::default() };
    let world = limited(Quotas { caller, ..Quotas::default() }).await;
    let mut first = world.connect().await;
    let head = b"GET /slow HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nConnection: close\r\n\r\n";
    first.write_all(head).await.unwrap();
    world.inside.slow_begun.notified().await;
    let refused = world.get("/").await;
    assert_eq!(
        (refused.status, refused.detail().as_str()),
        (429, "Too many requests at once for this caller.")
    );
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    world.inside.go.notify_one();
    assert_eq!(Answer::read(&mut first).await.body, "slow");
    world.eventually("web", 418).await;
}

#[tokio::test]
async fn a_streaming_response_counts_until_its_end_and_an_abandoned_one_no_longer() {
    let sandbox = Quota { requests: Some(1), ..Quota::default() };
    let world = limited(Quotas { sandbox, ..Quotas::default() }).await;
    let mut first = world.connect().await;
    first.write_all(b"GET /stream HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n\r\n").await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"one\r\n") {
        assert_ne!(first.read_buf(&mut seen).await.unwrap(), 0);
    }
    assert_eq!(world.get("/").await.status, 429);
    drop(first);
    world.eventually("web", 418).await;
}

#[tokio::test]
async fn tunnels_have_a_limit_of_their_own() {
    let caller = Quota { tunnels: Some(1), ..Quota::default() };
    let world = limited(Quotas { caller, ..Quotas::default() }).await;
    let head = b"GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    let open = async || {
        let mut stream = world.connect().await;
        stream.write_all(head).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        (stream, String::from_utf8(status[9..].to_vec()).unwrap())
    };
    let (first, status) = open().await;
    assert_eq!(status, "101");
    assert_eq!(open().await.1, "429");
    assert_eq!(world.get("/").await.status, 418);
    drop(first);
    while open().await.1 != "101" {}
}

#[tokio::test]
async fn a_rate_is_429_with_the_time_to_wait() {
    let rate = Some(Rate { per_second: 1.try_into().unwrap(), burst: 2.try_into().unwrap() });
    let world = limited(Quotas { caller: Quota { rate, ..Quota::default() }, ..Quotas::default() }).await;
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(world.get("/").await.status);
    }
    assert_eq!(statuses[..2], [418, 418]);
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn guessing_tokens_is_slow_and_a_good_token_is_no_way_around() {
    let rate = Rate { per_second: 1.try_into().unwrap(), burst: 3.try_into().unwrap() };
    let quotas = Quotas { refusals_per_address: Some(rate), ..Quotas::default() };
    let authorization = Authorization::shared_token("shared");
    let world = World::configured(Config { quotas, authorization, ..Config::default() }).await;
    let headers = |token: &str| format!("Host: r\r\nX-Sandbox-ID: web\r\nAuthorization: Bearer {token}\r\n");
    for _ in 0..20 {
        assert_eq!(ask(&world, "GET /", &headers("shared")).await.status, 418, "good ones are not counted");
    }
    let mut statuses = Vec::new();
    for guess in 0..8 {
        statuses.push(ask(&world, "GET /", &headers(&guess.to_string())).await.status);
    }
    assert_eq!(statuses[..3], [401; 3]);
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn no_secret_is_logged() {
    let log = crate::world::Log::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
    let _guard = tracing::subscriber::set_default(subscriber.with_writer(log.clone()).finish());
    let (world, key) = guarded().await;
    let (good, bad) = (token(&key, "web"), token(&key, "other"));
    for token in [&good, &bad, "shared", "wrong-secret"] {
        let bearer = format!("Host: r\r\nX-Sandbox-ID: web\r\nAuthorization: Bearer {token}\r\n");
        ask(&world, "GET /", &bearer).await;
        let cookie = format!("Host: r\r\nCookie: sandbox_token={token}\r\nSec-Fetch-Mode: navigate\r\n");
        ask(&world, "GET /s/default/web/80/", &cookie).await;
        ask(&world, &format!("GET /s/default/web/80/?sandbox_token={token}"), &cookie).await;
    }
    let text = log.text();
    assert!(text.contains("asb_router"), "something is logged: {text}");
    for secret in [&good, &bad, "Bearer", "wrong-secret"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413_by_its_length_and_while_it_streams() {
    let world = limited(Quotas { body_bytes: Some(1000), ..Quotas::default() }).await;
    let head = "POST / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n";
    assert_eq!(world.send(head, &[0; 1000]).await.status, 418);
    let before = world.inside.requests.load(Ordering::SeqCst);
    assert_eq!(world.send(head, &[0; 1001]).await.status, 413);
    assert_eq!(world.inside.requests.load(Ordering::SeqCst), before, "refused before it was sent");

    let mut stream = world.connect().await;
    stream.write_all(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
    for _ in 0..3 {
        let _ = stream.write_all(format!("1f4\r\n{}\r\n", "x".repeat(500)).as_bytes()).await;
    }
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
}

#[tokio::test]
async fn too_many_headers_are_431() {
    let quotas = Quotas { header_count: Some(10), header_bytes: Some(1000), ..Quotas::default() };
    let world = limited(quotas).await;
    for (more, status) in [
        (String::new(), 418),
        ("X-A: b\r\n".repeat(11), 431),
        (format!("X-A: {}\r\n", "b".repeat(1000)), 431),
    ] {
        let headers = format!("Host: r\r\nX-Sandbox-ID: web\r\n{more}");
        assert_eq!(ask(&world, "GET /", &headers).await.status, status);
    }
}

#[tokio::test]
async fn connections_of_one_address_are_limited() {
    let world = limited(Quotas { connections_per_address: Some(1), ..Quotas::default() }).await;
    let mut first = world.connect().await;
    first.write_all(b"GET /slow HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\n\r\n").await.unwrap();
    world.inside.slow_begun.notified().await;
    let mut second = world.connect().await;
    assert_eq!(second.read(&mut [0; 1]).await.unwrap_or(0), 0, "closed at once");
    drop(first);
    eventually("the first ended", || world.inside.abandoned.load(Ordering::SeqCst)).await;
    world.eventually_connected().await;
}
