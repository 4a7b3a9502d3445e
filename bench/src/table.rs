//! Tables of plain text: names to the left, numbers to the right.

use std::fmt::{self, Display};
use std::time::Duration;

use crate::stats::{Samples, milliseconds};

pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(header: [&str; N]) -> Self {
        Self { rows: vec![header.map(str::to_owned).to_vec()] }
    }

    /// More columns.
    pub fn head(&mut self, names: impl IntoIterator<Item = String>) {
        self.rows[0].extend(names);
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// A table of latencies in milliseconds, one line for each name.
    pub fn latencies<'a>(title: &str, lines: impl IntoIterator<Item = (&'a str, &'a Samples)>) -> Self {
        let mut table = Self::new([title, "n", "min ms", "p50 ms", "p90 ms", "p99 ms"]);
        for (name, samples) in lines {
            let cells = [0, 50, 90, 99].map(|percent| number(samples.percentile(percent).map(milliseconds)));
            table.row([name.to_owned(), samples.count().to_string()].into_iter().chain(cells));
        }
        table
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let widths: Vec<_> = (0..columns)
            .map(|column| cells(column).map(|it| it.chars().count()).max().unwrap_or(0))
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match at {
                    0 => line += &format!("{cell:<width$}"),
                    _ => line += &format!("  {cell:>width$}"),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number with two digits that matter, or a dash.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// How many times as long `ours` takes as `theirs`.
pub fn ratio(ours: Option<Duration>, theirs: Option<Duration>) -> Option<f64> {
    Some(ours?.as_secs_f64() / theirs?.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_below_each_other() {
        let mut table = Table::new(["what", "ms"]);
        table.row(["a long name".to_owned(), number(Some(1.5))]);
        table.row(["b".to_owned(), number(Some(1234.5))]);
        table.row(["c".to_owned(), number(None)]);
        let shown = table.to_string();
        assert_eq!(shown, "what           ms\na long name  1.50\nb            1234\nc               –\n");
    }

    #[test]
    fn ratio_needs_both_sides() {
        let second = Duration::from_secs(1);
        assert_eq!(ratio(Some(second * 3), Some(second * 2)), Some(1.5));
        assert_eq!(ratio(Some(second), None), None);
    }
}
