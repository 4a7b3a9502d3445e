//! The API below `/v1`, as a client sees it.

mod files;
mod transfer;
mod watch;

use crate::support::{Answer, Daemon};

impl Daemon {
    pub fn put(&self, path: &str, content: &[u8]) -> Answer {
        self.send("PUT", &format!("/v1/files/{path}"), "", content)
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", &format!("/v1/files/{path}"), "", b"")
    }

    pub fn post(&self, path: &str, body: &serde_json::Value) -> Answer {
        self.send("POST", path, "Content-Type: application/json\r\n", body.to_string().as_bytes())
    }

    pub fn relocate(&self, call: &str, from: &str, to: &str, overwrite: bool) -> Answer {
        let body = serde_json::json!({"from": from, "to": to, "overwrite": overwrite});
        self.post(&format!("/v1/{call}"), &body)
    }
}

impl Answer {
    /// Status and code of a refusal, checking its shape.
    pub fn refusal(&self) -> (u16, String) {
        assert!(self.head.contains("content-type: application/json"), "{}", self.head);
        assert!(self.text().ends_with('\n'));
        (self.status, self.json()["code"].as_str().unwrap().to_owned())
    }
}

pub fn refusal(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}
