//! From single answers of a probe to what they mean. Pure.

use super::Probe;

/// Answers of one kind in a row.
#[derive(Debug, Default)]
pub struct Answers {
    last: Option<bool>,
    in_a_row: u32,
}

impl Answers {
    /// Takes an answer in; says what is true now, once enough have said so in a row.
    pub fn note(&mut self, well: bool, probe: &Probe) -> Option<bool> {
        if self.last != Some(well) {
            (self.last, self.in_a_row) = (Some(well), 0);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let needed = if well { probe.successes } else { probe.failures };
        (self.in_a_row >= needed).then_some(well)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::care::Action;
    use std::time::Duration;

    #[test]
    fn verdict_needs_enough_answers_in_a_row() {
        let second = Duration::from_secs(1);
        let probe = Probe {
            action: Action::Tcp(1),
            delay: second,
            period: second,
            timeout: second,
            successes: 2,
            failures: 3,
            grace: None,
        };
        let mut answers = Answers::default();
        let given = [true, true, true, false, false, true, false, false, false, false, true, true];
        let verdicts: Vec<_> = given.into_iter().map(|well| answers.note(well, &probe)).collect();
        let (up, down) = (Some(true), Some(false));
        let expected = [None, up, up, None, None, None, None, None, down, down, None, up];
        assert_eq!(verdicts, expected);
    }
}
