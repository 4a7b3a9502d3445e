//! Which of the behaviours in `behaviours.txt` a test proves.
//!
//! A test names what it proves in the comment above it (`/// SB-012, SB-063`). A behaviour that is different
//! here on purpose is named in COMPATIBILITY.md instead. What neither names is open.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, bail};

const WANTED: &str = include_str!("../behaviours.txt");

/// Prints, family by family, what is proved, what is different, and what is open.
pub fn report(root: &Path) -> anyhow::Result<String> {
    let mut tested = BTreeSet::new();
    for folder in ["crates", "sdk", "bench"] {
        collect(&root.join(folder), &mut tested)?;
    }
    let different = std::fs::read_to_string(root.join("COMPATIBILITY.md")).unwrap_or_default();
    describe(&tested, &ids_in(&different))
}

fn describe(tested: &BTreeSet<String>, different: &BTreeSet<String>) -> anyhow::Result<String> {
    let mut text = String::new();
    for (family, ids) in wanted(WANTED)? {
        let is_different = |id: &&String| !tested.contains(*id) && different.contains(*id);
        let proved = ids.iter().filter(|id| tested.contains(*id)).count();
        let differing = ids.iter().filter(is_different).count();
        let open = ids.iter().filter(|id| !tested.contains(*id) && !different.contains(*id));
        let open: Vec<_> = open.map(String::as_str).collect();
        write!(text, "{family}: {proved} of {} proved by tests", ids.len())?;
        if differing > 0 {
            write!(text, ", {differing} different on purpose (COMPATIBILITY.md)")?;
        }
        match open.as_slice() {
            [] => writeln!(text)?,
            open => writeln!(text, ", {} open: {}", open.len(), open.join(" "))?,
        }
    }
    Ok(text)
}

/// Every family with its IDs, in order.
fn wanted(text: &str) -> anyhow::Result<Vec<(&str, Vec<String>)>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let family = |line| {
        let mut words = str::split_whitespace(line);
        let family = words.next().context("a line of behaviours.txt without a family")?;
        let mut ids = Vec::new();
        for range in words {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (from, to): (u32, u32) = (first.parse()?, last.parse()?);
            if from > to {
                bail!("behaviours.txt: {family} {range} ends before it begins");
            }
            ids.extend((from..=to).map(|number| format!("{family}-{number:0width$}", width = first.len())));
        }
        Ok((family, ids))
    };
    lines.map(family).collect()
}

/// Collects the IDs that comments of test files name.
fn collect(path: &Path, ids: &mut BTreeSet<String>) -> anyhow::Result<()> {
    if path.is_dir() {
        let entries =
            std::fs::read_dir(path).with_context(|| format!("failed to read {}", path.display()))?;
        for entry in entries {
            collect(&entry?.path(), ids)?;
        }
    } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        let comments = text.lines().map(str::trim_start).filter(|line| line.starts_with(['/', '#', '"']));
        ids.extend(comments.flat_map(ids_in));
    }
    Ok(())
}

/// The IDs in a text.
fn ids_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let is_id = |word: &&str| {
        word.split_once('-').is_some_and(|(family, number)| {
            family.len() == 2
                && family.bytes().all(|byte| byte.is_ascii_uppercase())
                && (2..=3).contains(&number.len())
                && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    words.filter(is_id).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_spelled_out() {
        let families = wanted("# no\nCL 001-003 020\n").unwrap();
        assert_eq!(families, [("CL", ["CL-001", "CL-002", "CL-003", "CL-020"].map(str::to_owned).to_vec())]);
        assert!(wanted("CL 003-001").is_err());
    }

    #[test]
    fn what_nobody_names_is_open() {
        let tested = ids_in("/// TP-01, TP-02: and more");
        let report = describe(&tested, &ids_in("- TP-03, TP-01: because")).unwrap();
        let line = report.lines().find(|line| line.starts_with("TP")).unwrap();
        let expected = "TP: 2 of 8 proved by tests, 1 different on purpose (COMPATIBILITY.md), \
                        5 open: TP-04 TP-05 TP-06 TP-07 TP-08";
        assert_eq!(line, expected);
    }

    #[test]
    fn words_that_only_look_like_ids_are_not() {
        assert!(ids_in("UTF-8, SHA-256, X-100, v1-01").is_empty());
    }
}
