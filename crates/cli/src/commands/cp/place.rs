//! One side of a copy, as it is written on the command line. Pure.

use std::path::PathBuf;

use crate::failure::hinted;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Standard input or output.
    Stream,
    Host(PathBuf),
    Sandbox {
        name: String,
        path: String,
    },
}

impl Place {
    /// `-`, `NAME:PATH`, or a path; one with a slash before its colon is a path.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        if text == "-" {
            return Ok(Self::Stream);
        }
        match text.split_once(':') {
            Some((name, path)) if !name.is_empty() && !name.contains('/') => match path {
                "" => Err(hinted(
                    format!("`{text}` names no path in the sandbox"),
                    format!("as in `{name}:/tmp/file`; a file with a colon is `./{text}`"),
                )),
                path => Ok(Self::Sandbox { name: name.to_owned(), path: path.to_owned() }),
            },
            _ => Ok(Self::Host(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_is_what_comes_before_a_colon() {
        let sandbox = Place::Sandbox { name: "web".to_owned(), path: "/a:b".to_owned() };
        assert_eq!(Place::parse("web:/a:b").expect("fine"), sandbox);
        assert_eq!(Place::parse("-").expect("fine"), Place::Stream);
        for path in ["a", "./a:b", "/a:b", "dir/x:y"] {
            assert_eq!(Place::parse(path).expect("fine"), Place::Host(path.into()));
        }
        assert!(Place::parse("web:").is_err());
    }
}
