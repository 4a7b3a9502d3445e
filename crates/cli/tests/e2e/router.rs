//! The engine's router and a web server inside a sandbox, for the tests that go through both.

use std::process::{Command, Output};

use crate::engine::{Engine, eventually, stdout, text};

const SERVER: &str = include_str!("sandbox_server.py");

pub struct Router {
    /// Without a scheme.
    pub address: String,
    pub token: String,
}

/// Starts a sandbox with `sandbox_server.py` on port 8000 and waits until it listens.
pub fn serve(engine: &Engine, name: &str) {
    stdout(&engine.asb(&["run", "--detach", "--name", name, "--", "python3", "-c", SERVER]));
    eventually("the server inside listens", || text(&engine.asb(&["logs", name])).contains("listening"));
}

// === impl Router ===

impl Router {
    pub fn of(engine: &Engine) -> Self {
        let token = std::fs::read_to_string(engine.data_dir.path().join("router.token")).unwrap();
        let address = engine.info["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
        Self { address, token }
    }

    /// A curl for port 8000 of `sandbox`, to which a URL below [`Router::url`] and options are still to be added.
    pub fn curl(&self, sandbox: &str) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "120"]);
        curl.args(["--header", &format!("Authorization: Bearer {}", self.token)]);
        curl.args(["--header", &format!("X-Sandbox-ID: {sandbox}"), "--header", "X-Sandbox-Port: 8000"]);
        curl
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, sandbox: &str, path: &str) -> Output {
        self.curl(sandbox).arg(self.url(path)).output().expect("curl can be started")
    }

    /// The head of a request to port 8000 of `sandbox`, without its last empty line.
    pub fn head(&self, method: &str, sandbox: &str, path: &str) -> String {
        let token = &self.token;
        format!(
            "{method} {path} HTTP/1.1\r\nHost: router\r\nX-Sandbox-ID: {sandbox}\r\nX-Sandbox-Port: 8000\r\n\
             Authorization: Bearer {token}\r\n"
        )
    }
}
