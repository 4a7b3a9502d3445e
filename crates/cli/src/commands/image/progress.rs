//! How far a pull has come: a bar on a terminal that vanishes at the end, plain lines elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

use asb_runtime::image::{Digest, Progress};
use indicatif::{ProgressBar, ProgressStyle};

use super::human;

#[derive(Clone)]
pub struct Bar {
    /// `None` where nobody watches.
    bar: Option<ProgressBar>,
    layers: Arc<Mutex<BTreeMap<Digest, Layer>>>,
}

#[derive(Default)]
struct Layer {
    bytes: u64,
    have: u64,
}

impl Bar {
    pub fn new(name: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{prefix} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg}");
            let bar = ProgressBar::new(0).with_prefix(format!("pulling {name}"));
            style.into_iter().for_each(|style| bar.set_style(style));
            bar
        });
        if bar.is_none() {
            eprintln!("pulling {name}");
        }
        Self { bar, layers: Arc::default() }
    }

    pub fn show(&self, progress: &Progress) {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let line = match progress {
            Progress::Layer { layer, bytes } => {
                layers.insert(layer.clone(), Layer { bytes: *bytes, have: 0 });
                Some(format!("layer {}: {}", short(layer), human(*bytes)))
            }
            Progress::Have { layer, bytes } => {
                layers.entry(layer.clone()).or_default().have = *bytes;
                None
            }
            Progress::Unpacking { layer } => Some(format!("layer {}: unpacking", short(layer))),
            Progress::Done { layer } => Some(format!("layer {}: done", short(layer))),
        };
        match (&self.bar, line) {
            (Some(bar), line) => {
                bar.set_length(layers.values().map(|layer| layer.bytes).sum());
                bar.set_position(layers.values().map(|layer| layer.have).sum());
                line.into_iter().for_each(|line| bar.set_message(line));
            }
            (None, Some(line)) => eprintln!("{line}"),
            (None, None) => {}
        }
    }

    pub fn finish(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn short(digest: &Digest) -> String {
    digest.hex().chars().take(12).collect()
}
