//! `$(NAME)` in commands and environment values, as Kubernetes expands it.

/// Replaces `$(NAME)` by the value of an earlier variable; `$$(NAME)` gives a literal `$(NAME)`.
///
/// A name that is not set stays as it was written.
pub fn expand(text: &str, env: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        if let Some(escaped) = tail.strip_prefix('$') {
            out.push('$');
            rest = escaped;
        } else if let Some((name, after)) = tail.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match env.iter().rev().find(|(key, _)| key == name) {
                Some((_, value)) => out.push_str(value),
                None => out.push_str(&rest[at..rest.len() - after.len()]),
            }
            rest = after;
        } else {
            out.push('$');
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_and_everything_else_is_kept() {
        let env = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "two".to_owned())];
        for (text, expected) in [
            ("$(A)-$(B)", "1-two"),
            ("$(NONE)", "$(NONE)"),
            ("$$(A)", "$(A)"),
            ("$A $ $(", "$A $ $("),
            ("plain", "plain"),
        ] {
            assert_eq!(expand(text, &env), expected);
        }
    }
}
