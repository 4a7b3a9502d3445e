//! What refuses to start, and why; files and variables.

use crate::world::{Cluster, program, said};

#[test]
fn version_and_help_start_nothing() {
    let (output, _) = said(program().arg("--version"));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && told.contains(env!("CARGO_PKG_VERSION")), "{told}");
    let (output, _) = said(program().arg("-help"));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && told.contains("--authz-trust-loopback"), "{told}");
}

#[test]
fn without_authorisation_it_does_not_start() {
    for flags in [&[][..], &["--authz-trust-loopback"], &["--cache-enabled=true"]] {
        let (output, said) = said(program().args(flags));
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        for mode in ["tokenreview", "scoped-token", "shared-token", "allow-all"] {
            assert!(said.contains(mode), "{said}");
        }
    }
}

#[test]
fn flags_that_cannot_be_used_end_with_two_and_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        format!("--config={}", path.display())
    };
    let unknown = file("unknown", "no-such-flag: 1");
    let list = file("list", "authz-mode: [allow-all]");
    for (flags, names) in [
        (&["--no-such-flag"][..], "--no-such-flag"),
        (&["--proxy-timeout=soon"], "--proxy-timeout"),
        (&["--mtls-mode=required"], "--tls-client-ca-file"),
        (&["--http-bind-address="], "--http-bind-address"),
        (&["--config=/nonexistent"], "--config"),
        (&[&unknown], "no-such-flag"),
        (&[&list], "--config"),
        (&["--authz-mode=scoped-token", "--authz-scoped-token-secret-file=/nonexistent"], "secret-file"),
    ] {
        let (output, said) = said(program().arg("--authz-mode=allow-all").args(flags));
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(names), "{flags:?}: {said}");
    }
}

#[test]
fn failures_at_work_end_with_one() {
    let (output, said) = said(program().args([
        "--authz-mode=allow-all",
        "--kubeconfig=/nonexistent",
        "--http-bind-address=127.0.0.1:0",
        "--metrics-bind-address=",
        "--health-probe-bind-address=",
    ]));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--kubeconfig /nonexistent"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_token_of_a_file_is_asked_for_and_loopback_is_trusted_only_on_demand() {
    let cluster = Cluster::start().await;
    let token = cluster.kubeconfig().with_file_name("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let config = cluster.kubeconfig().with_file_name("config.yaml");
    let text = format!("authz-mode: shared-token\nauthz-shared-token-file: {}\n", token.display());
    std::fs::write(&config, text).unwrap();
    let config = format!("--config={}", config.display());
    let request = cluster.request("GET", "/");
    let with_token = format!("{request}Authorization: Bearer s3cret\r\n");

    let program = cluster.program(&[&config]);
    assert_eq!(program.send("http", &request).status, 401);
    let allowed = program.send("http", &with_token);
    assert!(allowed.status == 200 && !allowed.body.contains("s3cret"), "{}", allowed.body);
    drop(program);
    let program = cluster.program(&[&config, "--authz-trust-loopback"]);
    assert_eq!(program.send("http", &request).status, 200);
    let spoofed = format!("{request}X-Forwarded-For: 10.0.0.1\r\n");
    assert_eq!(program.send("http", &spoofed).status, 200, "headers say nothing about a connection");
}
