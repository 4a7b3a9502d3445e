//! What a kubelet did, as `pods/kubelet.json` has it, and the verdict on what was seen.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::stage::Played;
use super::story::{Difference, Story};

/// Who runs the Pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Kubelet,
    Engine,
}

pub struct Record {
    side: Side,
    /// Whether all stories are played.
    whole: bool,
    known: BTreeMap<String, Vec<String>>,
}

impl Record {
    pub fn load(side: Side, stories: &[Story], whole: bool) -> Self {
        let text = std::fs::read_to_string(file()).expect("what a kubelet did is in the repository");
        let record =
            Self { side, whole, known: serde_json::from_str(&text).expect("it is a map of lists of lines") };
        for story in stories.iter().filter(|_| !record.writes()) {
            let known = record.known.contains_key(&story.name);
            assert!(
                known,
                "nobody knows what a kubelet does with {}: run ASB_WRITE_EXPECTED=1 tools/test cluster",
                story.name
            );
        }
        record
    }

    /// What should be seen; nothing is expected of what is to be recorded.
    pub fn expected(&self, story: &Story) -> Option<Expected> {
        if self.writes() {
            return None;
        }
        let known = self.known.get(&story.name)?;
        let difference = story.differs.as_ref().filter(|_| self.side == Side::Engine);
        let mut expected = Expected::new(known, difference);
        expected.ignored.extend(story.varies.iter().cloned());
        Some(expected)
    }

    /// Records what was seen or compares it, and tells of everything that is wrong at once.
    pub fn judge(mut self, stories: &[Story], played: Vec<Played>) {
        let mut wrong = Vec::new();
        let mut lines = BTreeMap::new();
        for (story, played) in stories.iter().zip(played) {
            match played {
                Err(error) => wrong.push(format!("{}: {error}", story.name)),
                Ok(mut seen) => {
                    seen.retain(|line| !story.varies.iter().any(|varies| line.starts_with(varies)));
                    wrong.extend(
                        self.expected(story).and_then(|expected| expected.verdict(&story.name, &seen)),
                    );
                    lines.insert(story.name.clone(), seen);
                }
            }
        }
        if self.writes() {
            if self.whole {
                self.known.retain(|name, _| stories.iter().any(|story| story.name == *name));
            }
            self.known.append(&mut lines);
            let text = serde_json::to_string_pretty(&self.known).expect("text is JSON");
            std::fs::write(file(), text + "\n").expect("the record can be written");
        }
        assert!(
            wrong.is_empty(),
            "{} of {} stories went differently:\n{}",
            wrong.len(),
            stories.len(),
            wrong.join("\n")
        );
    }

    fn writes(&self) -> bool {
        self.side == Side::Kubelet && std::env::var_os("ASB_WRITE_EXPECTED").is_some_and(|it| it == "1")
    }
}

fn file() -> PathBuf {
    crate::root().join("crates/testing/pods/kubelet.json")
}

/// What should be seen of one story.
#[derive(Debug, Clone)]
pub struct Expected {
    lines: Vec<String>,
    /// Beginnings of lines that are not compared.
    ignored: Vec<String>,
}

impl Expected {
    /// What a kubelet did, but for the difference.
    fn new(kubelet: &[String], difference: Option<&Difference>) -> Self {
        let Some(difference) = difference else {
            return Self { lines: kubelet.to_vec(), ignored: Vec::new() };
        };
        let kept = kubelet.iter().filter(|line| !difference.kubelet.contains(line));
        let lines = kept.chain(&difference.here).cloned().collect();
        Self { lines, ignored: difference.ignores.clone() }
    }

    /// Whether these lines are there and no others, in whatever order.
    pub fn is_met_by(&self, seen: &[String]) -> bool {
        self.verdict("", seen).is_none()
    }

    /// What is missing, and what is too much.
    fn verdict(&self, name: &str, seen: &[String]) -> Option<String> {
        let counts = |line: &&String| !self.ignored.iter().any(|ignored| line.starts_with(ignored.as_str()));
        let only = |sign: &str, some: &[String], others: &[String]| -> String {
            let only = some.iter().filter(counts).filter(|line| !others.contains(line));
            only.map(|line| format!("\n  {sign} {line}")).collect()
        };
        let all = only("-", &self.lines, seen) + &only("+", seen, &self.lines);
        (!all.is_empty()).then(|| format!("{name}:{all}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::story;
    use super::*;

    fn record() -> Record {
        Record::load(Side::Engine, &story::all(), true)
    }

    #[test]
    fn every_difference_is_one_and_compatibility_says_why() {
        let document = std::fs::read_to_string(crate::root().join("COMPATIBILITY.md")).unwrap();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let document = words(&document);
        let record = record();
        for story in story::all() {
            let Some(difference) = story.differs else { continue };
            let name = &story.name;
            assert!(
                document.contains(&words(&difference.because)),
                "COMPATIBILITY.md does not explain {name}"
            );
            let kubelet = &record.known[name];
            for line in &difference.kubelet {
                assert!(kubelet.contains(line), "{name}: no kubelet has the line {line:?}");
            }
            for start in &difference.ignores {
                assert!(
                    kubelet.iter().any(|line| line.starts_with(start)),
                    "{name}: no line begins with {start:?}"
                );
            }
            for line in &difference.here {
                assert!(!kubelet.contains(line), "{name}: a kubelet has the line {line:?} as well");
            }
        }
    }

    #[test]
    fn record_is_of_the_stories_that_are_there() {
        let stories: BTreeSet<_> = story::all().into_iter().map(|story| story.name).collect();
        assert_eq!(record().known.into_keys().collect::<BTreeSet<_>>(), stories);
        assert!(stories.len() >= 60, "{}", stories.len());
    }

    #[test]
    fn verdict_names_what_is_missing_and_what_is_too_much() {
        let lines = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (kubelet, seen) = (lines(&["a", "b"]), lines(&["c", "a"]));
        assert_eq!(Expected::new(&kubelet, None).verdict("it", &seen).as_deref(), Some("it:\n  - b\n  + c"));
        let differs = |ignores: &[&str]| {
            let because = String::new();
            let difference =
                Difference { because, kubelet: lines(&["b"]), here: lines(&["c"]), ignores: lines(ignores) };
            Expected::new(&kubelet, Some(&difference))
        };
        assert!(differs(&[]).is_met_by(&seen));
        assert!(!differs(&[]).is_met_by(&lines(&["c"])));
        assert!(differs(&["a"]).is_met_by(&lines(&["c"])), "that does not count");
    }
}
