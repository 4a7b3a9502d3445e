//! `securityContext.capabilities`: what root of a container may do. Pure.

use asb_runtime::Capabilities;
use serde_json::Value;

/// What is left when some are dropped and some of those added again; or why not, with the path of the field.
///
/// As containerd reads it: `drop: [ALL]` first, then what is added, then what else is dropped. A privileged container begins
/// with all there are.
pub fn of(field: &Value, path: &str, privileged: bool) -> Result<Capabilities, String> {
    let most = Capabilities::most(privileged);
    let (add, drop) = (names(field, "add", path)?, names(field, "drop", path)?);
    let is_all = |(_, name): &(usize, String)| name == ALL;
    let mut kept = match drop.iter().any(is_all) {
        true => Capabilities::NONE,
        false => most,
    };
    for (at, name) in add {
        let more = match name.as_str() {
            ALL if privileged => Some(most),
            ALL => None,
            name => kept.with(&format!("CAP_{name}"), most),
        };
        kept = more.ok_or_else(|| {
            let most: Vec<_> = most.names().map(|it| &it["CAP_".len()..]).collect();
            let most = most.join(", ");
            format!("{path}.add[{at}]: no sandbox has {name:?}; what can be added again is {most}")
        })?;
    }
    let dropped = drop.iter().filter(|name| !is_all(name));
    Ok(dropped.fold(kept, |kept, (_, name)| kept.without(&format!("CAP_{name}"))))
}

const ALL: &str = "ALL";

/// The names in a list with their places, as the kernel's are written but for `CAP_`.
fn names(field: &Value, list: &str, path: &str) -> Result<Vec<(usize, String)>, String> {
    let read = |(at, name): (usize, &Value)| {
        let written = name.as_str().unwrap_or_default();
        let upper = written.to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper).to_owned();
        let known = |name: &str| Capabilities::ALL.names().any(|it| it["CAP_".len()..] == *name);
        match name == ALL || known(&name) {
            true => Ok((at, name)),
            false => Err(format!(
                "{path}.{list}[{at}]: {written:?} is not the name of a capability, such as \"NET_BIND_SERVICE\""
            )),
        }
    };
    field[list].as_array().into_iter().flatten().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(field: Value) -> Vec<&'static str> {
        of(&field, "x", false).expect("fine").names().collect()
    }

    #[test]
    fn what_is_dropped_is_gone_and_what_is_added_again_is_there() {
        let all: Vec<_> = Capabilities::default().names().collect();
        assert_eq!(kept(Value::Null), all);
        assert_eq!(kept(json!({"drop": ["ALL"]})), [""; 0]);
        assert_eq!(kept(json!({"drop": ["all"], "add": ["NET_BIND_SERVICE"]})), ["CAP_NET_BIND_SERVICE"]);
        assert_eq!(kept(json!({"drop": ["NET_RAW"]})), all, "nobody has it");
        let less = kept(json!({"drop": ["CAP_CHOWN", "setuid"], "add": ["CHOWN"]}));
        assert_eq!(less.len(), all.len() - 2, "what is dropped by name stays dropped: {less:?}");
    }

    #[test]
    fn a_privileged_container_has_all_but_what_it_drops() {
        let kept = |field: Value| of(&field, "x", true).expect("fine");
        assert_eq!(kept(Value::Null), Capabilities::ALL);
        assert_eq!(
            kept(json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]})).names().collect::<Vec<_>>(),
            ["CAP_SYS_ADMIN"]
        );
        assert_eq!(
            kept(json!({"add": ["ALL"], "drop": ["SYS_PTRACE"]})),
            Capabilities::ALL.without("CAP_SYS_PTRACE")
        );
    }

    #[test]
    fn more_than_sandboxes_have_and_names_that_are_none_are_refused_by_their_path() {
        let refused = |field: Value| of(&field, "caps", false).expect_err("refused");
        assert!(refused(json!({"add": ["CHOWN", "SYS_ADMIN"]})).starts_with("caps.add[1]: no sandbox has"));
        assert!(refused(json!({"add": ["ALL"]})).starts_with("caps.add[0]"));
        assert!(refused(json!({"drop": ["CHWON"]})).starts_with("caps.drop[0]: \"CHWON\" is not the name"));
        assert!(refused(json!({"drop": [7]})).starts_with("caps.drop[0]"));
    }
}
