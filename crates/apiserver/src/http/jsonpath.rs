//! The JSONPath subset of printer columns: `.a.b[0]`, `['c.d/e']`, `[*]` and `[?(@.type=="Ready")]`.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// Items whose value at the path equals (or differs from) the text.
    Where(Vec<String>, bool, String),
}

impl JsonPath {
    /// Parses leniently: what is not understood selects nothing.
    pub fn parse(text: &str) -> Self {
        let text = text.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let Some(end) = closing_bracket(after) else { break };
                steps.push(bracket(after[..end].trim()));
                rest = &after[end + 1..];
            } else {
                let after = rest.strip_prefix('.').unwrap_or(rest);
                let (name, end) = field(after);
                match name.as_str() {
                    "" => {}
                    "*" => steps.push(Step::All),
                    _ => steps.push(Step::Field(name)),
                }
                if end == 0 && after.len() == rest.len() {
                    break;
                }
                rest = &after[end..];
            }
        }
        Self(steps)
    }

    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![object];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.apply(value)).collect();
        }
        found
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let items = || value.as_array().map(Vec::as_slice).unwrap_or_default();
        match self {
            Step::Field(name) => value.get(name).into_iter().collect(),
            Step::Index(at) => {
                let at = if *at < 0 { items().len() as i64 + at } else { *at };
                usize::try_from(at).ok().and_then(|at| items().get(at)).into_iter().collect()
            }
            Step::All => match value {
                Value::Object(map) => map.values().collect(),
                _ => items().iter().collect(),
            },
            Step::Where(path, equal, text) => items()
                .iter()
                .filter(|item| {
                    let value = path.iter().fold(*item, |at, name| &at[name]);
                    let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    (shown == *text) == *equal
                })
                .collect(),
        }
    }
}

/// A field name and where it ends; `\.` is a dot inside the name.
fn field(text: &str) -> (String, usize) {
    let (mut name, mut escaped) = (String::new(), false);
    for (at, c) in text.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            '.' | '[' if !escaped => return (name, at),
            _ => {
                name.push(c);
                escaped = false;
            }
        }
    }
    (name, text.len())
}

fn closing_bracket(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, ']') => return Some(at),
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Step {
    if inner == "*" {
        return Step::All;
    }
    if let Ok(index) = inner.parse() {
        return Step::Index(index);
    }
    let unquote = |text: &str| text.trim().trim_matches(['\'', '"']).to_owned();
    if let Some(filter) = inner.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        let (left, equal, right) = match (filter.split_once("=="), filter.split_once("!=")) {
            (Some((left, right)), _) => (left, true, right),
            (None, Some((left, right))) => (left, false, right),
            (None, None) => return Step::Index(i64::MAX),
        };
        let path = left.trim().trim_start_matches('@').split('.').filter(|part| !part.is_empty());
        return Step::Where(path.map(str::to_owned).collect(), equal, unquote(right));
    }
    Step::Field(unquote(inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn printer_column_paths_are_understood() {
        let object = json!({ "metadata": { "labels": { "a.b/c": "x" } }, "spec": { "l": [1, 2] },
            "status": { "conditions": [{ "type": "Other", "status": "False" }, { "type": "Ready", "status": "True" }] } });
        for (path, want) in [
            (".status.conditions[?(@.type=='Ready')].status", json!("True")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type!=\"Ready\")].status", json!("False")),
            (".spec.l[1]", json!(2)),
            (".spec.l[-1]", json!(2)),
            (".metadata.labels['a.b/c']", json!("x")),
            (".metadata.labels.a\\.b/c", json!("x")),
            ("{.spec.l[0]}", json!(1)),
        ] {
            assert_eq!(JsonPath::parse(path).find(&object), [&want], "{path}");
        }
        assert!(JsonPath::parse(".spec.missing[0].x").find(&object).is_empty());
        assert_eq!(JsonPath::parse(".spec.l[*]").find(&object).len(), 2);
    }
}
