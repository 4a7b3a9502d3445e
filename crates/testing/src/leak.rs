//! The leak check: what sandboxes may not leave behind.

use std::path::Path;
use std::time::{Duration, Instant};

/// Removal is quick; a busy machine may take a moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// Panics when anything of sandboxes or volumes is left below a data directory, or on the machine because of it:
/// processes, mounts, cgroups, directories; and, once its engine has stopped, interfaces and packet filter rules.
pub fn assert_nothing_left(data_dir: &Path) {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = traces(data_dir);
        if left.is_empty() {
            return;
        }
        // Volumes go when the engine has seen that their claims went.
        assert!(Instant::now() < until, "left behind: {left:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn traces(data_dir: &Path) -> Vec<String> {
    let (runs, sandboxes) = (engine_runs(data_dir), data_dir.join("sandboxes"));
    let check = if runs { asb_runtime::leak::check_but_parked } else { asb_runtime::leak::check };
    let mut left = check(&sandboxes);
    for name in ["volumes", "pods"] {
        let entries = std::fs::read_dir(data_dir.join(name)).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    if !runs {
        left.extend(asb_network::leak::check(data_dir));
    }
    left
}

/// A running engine has a network, and slots for the next sandboxes, whether or not there are any.
fn engine_runs(data_dir: &Path) -> bool {
    std::fs::File::open(data_dir.join("lock")).is_ok_and(|lock| lock.try_lock().is_err())
}
