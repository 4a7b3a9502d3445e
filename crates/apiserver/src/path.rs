//! The place of a value inside an object. Costs nothing until it is shown.

use std::fmt;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
    /// An entry of a map, by its key.
    Key(&'a Path<'a>, &'a str),
}

impl Path<'_> {
    pub fn is_root(&self) -> bool {
        matches!(self, Path::Root)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Item(parent, at) => write!(f, "{parent}[{at}]"),
            Path::Key(parent, key) => write!(f, "{parent}[{key}]"),
        }
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> Self {
        path.to_string()
    }
}

impl From<&Path<'_>> for String {
    fn from(path: &Path<'_>) -> Self {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_kubernetes_writes_them() {
        let (spec, list) = (Path::Field(&Path::Root, "spec"), "containers");
        let list = Path::Field(&spec, list);
        assert_eq!(Path::Field(&Path::Item(&list, 1), "name").to_string(), "spec.containers[1].name");
        assert_eq!(Path::Key(&spec, "cpu").to_string(), "spec[cpu]");
        assert_eq!(String::from(Path::Root), "");
    }
}
