//! The tables of published clients in COMPATIBILITY.md, written by the tests that prove them.
//!
//! A test that played a version in a mode compares its cell with what passed. `ASB_WRITE_TABLES=1` writes the cell instead.

use std::sync::{Mutex, PoisonError};

use super::Passed;

const MODES: [&str; 7] =
    ["tunnel", "direct", "gateway", "in-cluster", "sandboxd-tunnel", "sandboxd-pod-ip", "sandboxd-service"];
/// Tests of one process run at once.
static FILE: Mutex<()> = Mutex::new(());

/// What the clients talk to; each has a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Engine,
    Cluster,
}

impl Place {
    /// What surrounds its table.
    fn markers(self) -> [&'static str; 2] {
        match self {
            Self::Engine => [
                "<!-- published clients: begin; written by `ASB_WRITE_TABLES=1 cargo test -p asb --test e2e clients::` -->",
                "<!-- published clients: end -->",
            ],
            Self::Cluster => [
                "<!-- published clients on a cluster: begin; written by `ASB_WRITE_TABLES=1 tools/test cluster` -->",
                "<!-- published clients on a cluster: end -->",
            ],
        }
    }
}

/// Compares the cell of this version and mode with what passed, or writes it.
pub fn record(place: Place, version: &str, mode: &str, passed: Passed) {
    let _one_at_a_time = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = crate::root().join("COMPATIBILITY.md");
    let document = std::fs::read_to_string(&path).expect("COMPATIBILITY.md can be read");
    let updated = with_cell(place, &document, version, mode, &cell(passed));
    if std::env::var_os("ASB_WRITE_TABLES").is_some_and(|it| it == "1") {
        std::fs::write(&path, updated).expect("COMPATIBILITY.md can be written");
    } else {
        assert!(
            updated == document,
            "COMPATIBILITY.md is stale ({place:?}): {version} passed {:?} in mode {mode}; run these tests with ASB_WRITE_TABLES=1",
            cell(passed)
        );
    }
}

fn cell(passed: Passed) -> String {
    match passed {
        Passed { synchronous: 0, asynchronous: 0 } => "–".to_owned(),
        Passed { synchronous, asynchronous: 0 } => format!("{synchronous} · –"),
        Passed { synchronous, asynchronous } => format!("{synchronous} · {asynchronous}"),
    }
}

/// The document with one cell replaced; a version without a row gets one.
fn with_cell(place: Place, document: &str, version: &str, mode: &str, cell: &str) -> String {
    let [begin, end] = place.markers();
    let (before, rest) =
        document.split_once(begin).expect("COMPATIBILITY.md has the marker where the table begins");
    let (table, after) = rest.split_once(end).expect("COMPATIBILITY.md has the marker where the table ends");
    let mut rows: Vec<Vec<String>> =
        table.lines().skip(3).filter(|line| line.starts_with('|')).map(cells).collect();
    let at =
        rows.iter().position(|row| row.first().is_some_and(|name| name == version)).unwrap_or_else(|| {
            rows.push(std::iter::once(version.to_owned()).chain(MODES.map(|_| "–".to_owned())).collect());
            rows.len() - 1
        });
    let column = MODES.iter().position(|known| *known == mode).expect("the mode has a column");
    rows[at].resize(MODES.len() + 1, "–".to_owned());
    rows[at][column + 1] = cell.to_owned();
    rows.sort_by_key(|row| std::cmp::Reverse(order(&row[0])));
    let mut lines = vec![row(&["version"].iter().chain(&MODES).map(ToString::to_string).collect::<Vec<_>>())];
    lines.push("|---".repeat(MODES.len() + 1) + "|");
    lines.extend(rows.iter().map(|cells| row(cells)));
    format!("{before}{begin}\n{}\n{end}{after}", lines.join("\n"))
}

fn cells(line: &str) -> Vec<String> {
    line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

fn row(cells: &[String]) -> String {
    format!("| {} |", cells.join(" | "))
}

/// The numbers of a version, for the newest first.
fn order(version: &str) -> Vec<u32> {
    version.split('.').filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cell_changes_and_the_newest_version_is_first() {
        let [begin, end] = Place::Cluster.markers();
        let document = format!("before\n{begin}\n{end}\nafter");
        let passed = |synchronous, asynchronous| cell(Passed { synchronous, asynchronous });
        let change = |document: &str, version: &str, mode: &str, cell: &str| {
            with_cell(Place::Cluster, document, version, mode, cell)
        };
        let one = change(&document, "0.5.6", "tunnel", &passed(9, 0));
        let two = change(&one, "1.0.8", "direct", &passed(20, 19));
        assert!(two.starts_with("before\n") && two.ends_with("\nafter"), "{two}");
        let rows: Vec<_> =
            two.lines().filter(|line| line.starts_with("| 1.") || line.starts_with("| 0.")).collect();
        assert_eq!(
            rows,
            ["| 1.0.8 | – | 20 · 19 | – | – | – | – | – |", "| 0.5.6 | 9 · – | – | – | – | – | – | – |"]
        );
        assert_eq!(change(&two, "1.0.8", "direct", "20 · 19"), two, "the same again changes nothing");
    }
}
