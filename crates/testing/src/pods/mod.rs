//! One list of Pods for a kubelet and for our node: what both do with each of them is compared, line by line.
//!
//! ```text
//! pods/*.yaml ─► stories ─► played side by side in one namespace ─► lines ─┬─ on a cluster: compared with pods/kubelet.json, or written
//!                           (stage, all at once)                   (seen)  └─ on one machine: compared with the same file
//! ```
//!
//! A story that goes differently on one machine on purpose names the lines and the sentence of COMPATIBILITY.md that says why.

mod images;
mod record;
mod seen;
mod stage;
mod story;

use kube::Client;

pub use images::write as write_images;
pub use record::Side;

use record::Record;
use stage::Stage;

/// Plays every story on the server of the client, all at once, and compares what was seen. `ASB_WRITE_EXPECTED=1` records what a
/// kubelet did; `ASB_ONLY=TEXT` plays only stories whose names contain that.
///
/// `kubectl` makes a kubectl for this server, to which arguments are added.
pub async fn play(side: Side, client: Client, kubectl: impl Fn() -> tokio::process::Command + Send + Sync) {
    let only = std::env::var("ASB_ONLY").unwrap_or_default();
    let mut stories = story::all();
    stories.retain(|story| story.name.contains(&only));
    let record = Record::load(side, &stories, only.is_empty());
    let stage = Stage::new(client, &kubectl).await;
    let played = stories.iter().map(|story| stage.play(story, record.expected(story)));
    let played = futures::future::join_all(played).await;
    stage.clear().await;
    record.judge(&stories, played);
}
