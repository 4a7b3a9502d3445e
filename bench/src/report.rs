//! Where the numbers of one run go: to the terminal as they come, and to a file.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Map, Value, json};

/// What one run found.
pub struct Report {
    path: PathBuf,
    results: Map<String, Value>,
}

impl Report {
    pub fn new(name: &str, path: Option<&Path>) -> Self {
        let usual = || asb_testing::root().join("bench/results").join(format!("{name}.json"));
        let mut results = Map::new();
        results.insert("name".to_owned(), json!(name));
        results.insert("machine".to_owned(), machine());
        Self { path: path.map_or_else(usual, Path::to_owned), results }
    }

    pub fn put(&mut self, key: &str, value: Value) {
        self.results.insert(key.to_owned(), value);
    }

    /// Writes the file. Load is noted again: a machine that got busy explains odd numbers.
    pub fn save(mut self) -> anyhow::Result<()> {
        self.put("loadAtEnd", json!(load()));
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("failed to make {}", directory.display()))?;
        }
        let text = serde_json::to_string_pretty(&self.results)?;
        std::fs::write(&self.path, text)
            .with_context(|| format!("failed to write {}", self.path.display()))?;
        println!("load average now: {}; samples in {}", load(), self.path.display());
        Ok(())
    }
}

/// A name for the machine that says what matters for these numbers, and nothing else of it.
fn machine() -> Value {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu": model.map(|(_, model)| model),
        "load": load(),
        "at": jiff::Timestamp::now().to_string(),
    })
}

pub fn load() -> String {
    read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
