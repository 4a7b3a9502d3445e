//! Metrics and the access log.

use serde_json::Value;

use crate::world::{Cluster, Program, eventually};

fn access(program: &Program) -> Vec<Value> {
    program.log().into_iter().filter(|line| line["target"] == "sandbox-router.access").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_counted_and_logged_without_its_query() {
    let cluster = Cluster::start().await;
    let program = cluster.program(&["--authz-mode=allow-all"]);
    let request = format!("{}User-Agent: test\r\n", cluster.request("GET", "/run?token=s3cret"));
    let answer = program.send("http", &request);
    assert!(answer.status == 200 && answer.body.starts_with("GET /run?token=s3cret "), "{}", answer.body);
    let unknown = "BREW /x HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: none\r\nX-Sandbox-Namespace: made-up\r\n";
    assert_eq!(program.send("http", unknown).status, 404);

    eventually("both are logged", || access(&program).len() == 2);
    let lines = access(&program);
    let line = &lines[0];
    assert_eq!((&line["message"], &line["level"]), (&"request".into(), &"INFO".into()));
    for (field, value) in [
        ("method", Value::from("GET")),
        ("path", "/run".into()),
        ("status", 200.into()),
        ("client_ip", "127.0.0.1".into()),
        ("sandbox_id", "web".into()),
        ("sandbox_namespace", "default".into()),
        ("bytes_out", answer.body.len().into()),
        ("user_agent", "test".into()),
        ("caller", "anonymous".into()),
    ] {
        assert_eq!(line[field], value, "{field} of {line}");
    }
    assert!(line["duration_ms"].is_number(), "{line}");
    assert!(!format!("{:?}", program.log()).contains("s3cret"));

    let page = program.get("metrics", "/metrics").body;
    for line in [
        r#"sandbox_router_requests_total{method="GET",code="200",sandbox_namespace="default"} 1"#,
        r#"sandbox_router_requests_total{method="other",code="404",sandbox_namespace="-"} 1"#,
        r#"sandbox_router_authz_decisions_total{sandbox_namespace="default",decision="allow"} 1"#,
        "sandbox_router_inflight_requests 0",
        r#"sandbox_router_hold_duration_seconds_bucket{le="0.25",sandbox_namespace="-"} 0"#,
        r#"sandbox_router_hold_duration_seconds_count{sandbox_namespace="-"} 1"#,
        "sandbox_router_build_info{",
    ] {
        assert!(page.contains(line), "{line} is not in:\n{page}");
    }
    assert!(!page.contains("made-up"), "{page}");
    assert_eq!(program.get("metrics", "/").status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_does_not_listen_is_an_upstream_error() {
    let cluster = Cluster::start().await;
    let program = cluster.program(&["--authz-mode=allow-all", "--access-log=false"]);
    // Port 1 of loopback: nothing listens there.
    let head = "GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: web\r\nX-Sandbox-Port: 1\r\n";
    assert_eq!(program.send("http", head).status, 502);
    let page = program.get("metrics", "/metrics").body;
    let errors = r#"sandbox_router_upstream_errors_total{sandbox_namespace="default",reason="dial"} 1"#;
    assert!(page.contains(errors), "{page}");
    assert!(
        page.contains(r#"sandbox_router_upstream_retries_total{sandbox_namespace="default"} 6"#),
        "{page}"
    );
    assert!(access(&program).is_empty(), "the access log is off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_a_limit_and_open_tunnels_are_counted() {
    let cluster = Cluster::start().await;
    let program = cluster.program(&["--authz-mode=allow-all", "--max-request-body-bytes=10"]);
    let request = format!("{}Content-Length: 11\r\n", cluster.request("POST", "/"));
    assert_eq!(program.send("http", &request).status, 413);
    let page = program.get("metrics", "/metrics").body;
    assert!(page.contains(r#"sandbox_router_limited_requests_total{limit="body"} 1"#), "{page}");

    let open = |count: u8| {
        let line = format!("sandbox_router_open_tunnels {count}\n");
        program.get("metrics", "/metrics").body.contains(&line)
    };
    assert!(open(0));
    let tunnel = program.tunnel(&cluster);
    assert!(open(1), "a tunnel is counted while it is open");
    drop(tunnel);
    eventually("the end of the tunnel is counted", || open(0));
}
