//! A build without OTLP: there are no metrics to push.

use std::time::Duration;

pub enum Push {}

type Label<'a> = (&'static str, &'a str);

impl Push {
    pub fn start() -> anyhow::Result<Self> {
        anyhow::bail!("--enable-otel-metrics: this program cannot export metrics; sandbox-router can")
    }

    pub fn started(&self) {
        match *self {}
    }

    pub fn finished(&self, _: &[Label<'_>], _: Duration) {
        match *self {}
    }

    pub fn upstream_error(&self, _: &[Label<'_>]) {
        match *self {}
    }

    pub fn upstream_retry(&self, _: &[Label<'_>]) {
        match *self {}
    }

    pub fn cache_invalidation(&self, _: &[Label<'_>]) {
        match *self {}
    }

    pub fn decision(&self, _: &[Label<'_>]) {
        match *self {}
    }

    pub fn reload(&self, _: &[Label<'_>]) {
        match *self {}
    }

    pub fn held(&self, _: &[Label<'_>], _: Duration) {
        match *self {}
    }

    pub fn limited(&self, _: &[Label<'_>]) {
        match *self {}
    }

    pub fn tunnels(&self, _: i64) {
        match *self {}
    }

    pub async fn flush(&self) {
        match *self {}
    }
}
