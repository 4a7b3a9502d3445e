//! One HTTP call runs a command in a named sandbox.

use std::process::Command;

use serde_json::Value;

use crate::engine::{Engine, stdout};

struct Router {
    url: String,
    token: String,
}

impl Router {
    fn of(engine: &Engine) -> Self {
        let token = std::fs::read_to_string(engine.data_dir.path().join("router.token")).unwrap();
        Self { url: engine.info["router"].as_str().unwrap().to_owned(), token }
    }

    /// `(status, body)` of a call made with curl, as a user would.
    fn call(&self, token: Option<&str>, sandbox: &str, path: &str, more: &[&str]) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--write-out", "\n%{http_code}"]);
        curl.args(["--header", &format!("X-Sandbox-ID: {sandbox}")]);
        if let Some(token) = token {
            curl.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        let output =
            curl.args(more).arg(format!("{}{path}", self.url)).output().expect("curl can be started");
        let said = stdout(&output);
        let (body, status) = said.rsplit_once('\n').expect("curl writes the status last");
        (status.parse().unwrap(), body.to_owned())
    }
}

#[test]
fn command_runs_and_files_travel_through_the_router() {
    let engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "web"]));
    let router = Router::of(&engine);
    let token = router.token.clone();
    let json =
        ["--header", "Content-Type: application/json", "--data", r#"{"command":"sh -c 'hostname; exit 5'"}"#];
    let (status, body) = router.call(Some(&token), "web", "/execute", &json);
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["stdout"], &answer["exit_code"]), (200, &"web\n".into(), &5.into()));

    let file = engine.data_dir.path().join("upload");
    std::fs::write(&file, "some bytes").unwrap();
    let form = format!("file=@{};filename=dir/a.txt", file.display());
    assert_eq!(router.call(Some(&token), "web", "/upload", &["--form", &form]).0, 200);
    assert_eq!(
        router.call(Some(&token), "web", "/download/dir%2Fa.txt", &[]),
        (200, "some bytes".to_owned())
    );
    assert_eq!(router.call(Some(&token), "web", "/download/..%2Fetc%2Fpasswd", &[]).0, 403);
    engine.stop();
}

#[test]
fn only_the_token_opens_the_router_and_only_to_sandboxes_that_exist() {
    let engine = Engine::start();
    stdout(&engine.asb(&["run", "--detach", "--name", "web"]));
    let router = Router::of(&engine);
    for token in [None, Some("wrong"), Some("")] {
        let (status, body) = router.call(token, "web", "/", &[]);
        assert_eq!(status, 401);
        assert!(body.starts_with(r#"{"detail":"unauthenticated","hint":"#), "{body}");
    }
    assert_eq!(router.call(Some(&router.token), "nobody", "/", &[]).0, 404);
    assert_eq!(router.call(Some(&router.token), "../web", "/", &[]).0, 400);
    assert_eq!(router.call(Some(&router.token), "web", "/", &[]).0, 200);
    engine.stop();
}
