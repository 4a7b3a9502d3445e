//! Our system call filter as the list that other runtimes take.
//!
//! They have one filter where we have two, so what exists and is refused is spelled out beside what is allowed: rules
//! about one call never overlap, for then nobody would know which one holds.

use asb_supervisor::calls::{
    self, ALLOWED, DENIED, NAMESPACES, OLD_ALLOWED, OLD_DENIED, PAST_NAMESPACES, PERSONALITIES, SOCKETS,
    SOCKETS_PAST_NAMESPACES,
};
use serde_json::{Value, json};

/// Calls whose arguments decide.
const DECIDED_BY_ARGUMENTS: [&str; 4] = ["clone", "ioctl", "personality", "socket"];
/// Families of sockets that there are, and some more.
const FAMILIES: std::ops::Range<u64> = 0..64;

pub fn profile() -> Value {
    let names = |lists: [&'static [calls::Call]; 2]| -> Vec<_> {
        let names = lists.into_iter().flatten().map(calls::name);
        names.filter(|name| !DECIDED_BY_ARGUMENTS.contains(name)).collect()
    };
    let mut rules = vec![
        json!({"names": names([ALLOWED, OLD_ALLOWED]), "action": "SCMP_ACT_ALLOW"}),
        json!({"names": names([DENIED, OLD_DENIED]), "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM}),
    ];
    rules.extend(PERSONALITIES.iter().map(|value| allow("personality", equal(0, u64::from(*value)))));
    let namespaces = u64::from(NAMESPACES);
    rules.push(allow("clone", masked(0, namespaces, 0)));
    rules.extend(bits(namespaces).map(|flag| refuse("clone", masked(0, flag, flag))));
    rules.extend(FAMILIES.map(|family| match SOCKETS.iter().any(|known| u64::from(*known) == family) {
        true => allow("socket", equal(0, family)),
        false => refuse("socket", equal(0, family)),
    }));
    rules.extend(other_than("ioctl", 1, u64::from(libc::TIOCSTI as u32)));
    rules.push(refuse("ioctl", masked(1, u64::from(u32::MAX), u64::from(libc::TIOCSTI as u32))));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::ENOSYS,
        "architectures": [architecture()],
        "syscalls": rules,
    })
}

/// For a privileged sandbox: all but what leads past its own namespaces.
pub fn privileged_profile() -> Value {
    let names: Vec<_> = PAST_NAMESPACES.iter().map(calls::name).collect();
    let mut rules = vec![json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM})];
    rules.extend(SOCKETS_PAST_NAMESPACES.iter().map(|family| refuse("socket", equal(0, u64::from(*family)))));
    json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": [architecture()], "syscalls": rules})
}

/// Allows a call whose argument, of which the kernel looks at 32 bits, is not this value: some bit is another.
fn other_than(call: &'static str, argument: u32, value: u64) -> impl Iterator<Item = Value> {
    bits(u64::from(u32::MAX)).map(move |bit| allow(call, masked(argument, bit, !value & bit)))
}

fn bits(of: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS).map(|bit| 1 << bit).filter(move |bit| of & bit != 0)
}

fn allow(call: &str, argument: Value) -> Value {
    json!({"names": [call], "action": "SCMP_ACT_ALLOW", "args": [argument]})
}

fn refuse(call: &str, argument: Value) -> Value {
    json!({"names": [call], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM, "args": [argument]})
}

fn equal(argument: u32, value: u64) -> Value {
    json!({"index": argument, "value": value, "op": "SCMP_CMP_EQ"})
}

/// Whether the bits of `mask` are those of `value`.
fn masked(argument: u32, mask: u64, value: u64) -> Value {
    json!({"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "SCMP_ARCH_AARCH64",
        _ => "SCMP_ARCH_X86_64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_decided_by_arguments_have_no_rule_without() {
        let profile = profile();
        for rule in profile["syscalls"].as_array().expect("a list") {
            for name in rule["names"].as_array().expect("a list") {
                let decided = DECIDED_BY_ARGUMENTS.contains(&name.as_str().expect("a name"));
                assert_eq!(decided, rule["args"].is_array(), "{rule}");
            }
        }
    }

    #[test]
    fn some_rule_allows_every_other_number_and_none_the_refused_one() {
        let refused = u64::from(libc::TIOCSTI as u32);
        let allows = |number: u64| {
            other_than("ioctl", 1, refused).any(|rule| {
                let argument = &rule["args"][0];
                number & argument["value"].as_u64().expect("a mask")
                    == argument["valueTwo"].as_u64().expect("a value")
            })
        };
        assert!(!allows(refused) && !allows(refused | 1 << 40));
        for number in [0, 0x5401, 0x5413, refused + 1, refused - 1, u64::from(u32::MAX)] {
            assert!(allows(number), "{number:#x}");
        }
    }
}
