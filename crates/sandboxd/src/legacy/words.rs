//! Splits a command line into words, by the quoting rules of a POSIX shell and nothing else: no expansion, no operators,
//! no comments. Clients that want a shell say `sh -c '…'`.

/// The words of `line`, or why it cannot be split.
pub fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        match character {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\'' => single_quoted(&mut rest, word.get_or_insert_default())?,
            '"' => double_quoted(&mut rest, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(rest.next().ok_or("No escaped character")?),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

fn single_quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), &'static str> {
    loop {
        match rest.next().ok_or("No closing quotation")? {
            '\'' => return Ok(()),
            other => word.push(other),
        }
    }
}

fn double_quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), &'static str> {
    loop {
        match rest.next().ok_or("No closing quotation")? {
            '"' => return Ok(()),
            '\\' => match rest.next().ok_or("No escaped character")? {
                escaped @ ('"' | '\\') => word.push(escaped),
                other => word.extend(['\\', other]),
            },
            other => word.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_by_the_rules_of_a_posix_shell() {
        let table: [(&str, &[&str]); 12] = [
            ("", &[]),
            (" \t\n", &[]),
            ("echo 'hello world'", &["echo", "hello world"]),
            (r#"echo "a b"c'd e'"#, &["echo", "a bcd e"]),
            (r#"a\ b "\"\\\n" '\n'"#, &["a b", r#""\\n"#, r"\n"]),
            ("'' \"\"", &["", ""]),
            ("echo $HOME | cat # not a comment", &["echo", "$HOME", "|", "cat", "#", "not", "a", "comment"]),
            ("a;b&&c", &["a;b&&c"]),
            ("tab\tnew\nline", &["tab", "new", "line"]),
            ("sh -c 'echo '\"'\"'hi'\"'\"''", &["sh", "-c", "echo 'hi'"]),
            ("ünï \u{a0}x", &["ünï", "\u{a0}x"]),
            ("line\\\nbreak", &["line\nbreak"]),
        ];
        for (line, words) in table {
            assert_eq!(split(line).as_deref(), Ok(words.map_owned().as_slice()), "{line:?}");
        }
    }

    #[test]
    fn an_unfinished_line_says_what_is_missing() {
        assert_eq!(split("echo 'x"), Err("No closing quotation"));
        assert_eq!(split("echo \"x"), Err("No closing quotation"));
        assert_eq!(split("echo \\"), Err("No escaped character"));
        assert_eq!(split("echo \"\\"), Err("No escaped character"));
    }

    trait MapOwned {
        fn map_owned(&self) -> Vec<String>;
    }

    impl MapOwned for &[&str] {
        fn map_owned(&self) -> Vec<String> {
            self.iter().map(|&word| word.to_owned()).collect()
        }
    }
}
