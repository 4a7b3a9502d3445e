//! From answers by number to a program of the kernel's classic BPF, and its installation.
//!
//! Made by hand because the crate for it writes one comparison after another: 1,500 instructions here, which the kernel
//! walks through for every call number there is whenever a program is started (1.5 ms). Neighbours with the same answer
//! are one range, and ranges are found by halving: a few hundred instructions, ten or so per call.

use std::collections::BTreeMap;

use rustix::io::Errno;

use crate::mount::last_errno;

pub type Instruction = libc::sock_filter;

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// Exists, and is refused on purpose.
    Refuse,
    /// As if this kernel did not have it.
    Unknown,
    /// Ends the process.
    Kill,
}

/// What an argument must be. Arguments are compared by their low 32 bits, which is all the kernel looks at in these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    OneOf(&'static [u32]),
    NoneOf(&'static [u32]),
    WithoutBits(u32),
}

/// The answer to one call, whatever its arguments or by one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    Always(Verdict),
    /// Allowed when the argument is as it must be.
    Checked {
        argument: u8,
        check: Check,
        otherwise: Verdict,
    },
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;

/// Offsets into `seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `AUDIT_ARCH_…` of this build; on both the low half of an argument comes first.
#[cfg(target_arch = "x86_64")]
const THIS_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const THIS_ARCHITECTURE: u32 = 0xc000_00b7;

/// From here on numbers are those of another interface with the same architecture.
const OTHER_NUMBERS: u32 = 0x4000_0000;

/// `rest` is the answer to calls that no case is about.
pub fn compile(cases: &BTreeMap<u32, Case>, rest: Verdict) -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD, ARCHITECTURE),
        branch(IF_EQUAL, THIS_ARCHITECTURE, 1, 0),
        answer_with(Verdict::Kill),
        instruction(LOAD, NUMBER),
    ];
    program.extend(search(&ranges(cases, rest)));
    program
}

/// Where each answer begins, from number 0 on.
fn ranges(cases: &BTreeMap<u32, Case>, rest: Verdict) -> Vec<(u32, Case)> {
    // Behind each call begins the rest, unless another call stands there.
    let rest = Case::Always(rest);
    let mut starts: BTreeMap<u32, Case> = cases.keys().map(|number| (number + 1, rest)).collect();
    starts.insert(0, rest);
    starts.insert(OTHER_NUMBERS, Case::Always(Verdict::Unknown));
    starts.extend(cases);
    let mut ranges: Vec<_> = starts.into_iter().collect();
    ranges.dedup_by_key(|(_, case)| *case);
    ranges
}

/// Finds the range of the loaded number by halving.
fn search(ranges: &[(u32, Case)]) -> Vec<Instruction> {
    if let [(_, case)] = ranges {
        return decide(case);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (below, above) = (search(lower), search(upper));
    let first = upper[0].0;
    let mut program = match u8::try_from(below.len()) {
        Ok(length) => vec![branch(IF_AT_LEAST, first, length, 0)],
        // Too far for a conditional jump.
        Err(_) => vec![branch(IF_AT_LEAST, first, 0, 1), instruction(JUMP, below.len() as u32)],
    };
    program.extend(below);
    program.extend(above);
    program
}

fn decide(case: &Case) -> Vec<Instruction> {
    let (argument, check, otherwise) = match case {
        Case::Always(verdict) => return vec![answer_with(*verdict)],
        Case::Checked { argument, check, otherwise } => (*argument, *check, *otherwise),
    };
    // Each test skips the tests after it and the first answer when it holds.
    let tests = |values: &[u32]| -> Vec<Instruction> {
        (1..=values.len())
            .rev()
            .zip(values)
            .map(|(skip, value)| branch(IF_EQUAL, *value, skip as u8, 0))
            .collect()
    };
    let (tests, missed, hit) = match check {
        Check::OneOf(values) => (tests(values), otherwise, Verdict::Allow),
        Check::NoneOf(values) => (tests(values), Verdict::Allow, otherwise),
        Check::WithoutBits(bits) => (vec![branch(IF_ANY_BIT, bits, 1, 0)], Verdict::Allow, otherwise),
    };
    let mut program = vec![instruction(LOAD, ARGUMENTS + 8 * u32::from(argument))];
    program.extend(tests);
    program.extend([answer_with(missed), answer_with(hit)]);
    program
}

fn instruction(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn answer_with(verdict: Verdict) -> Instruction {
    let value = match verdict {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Refuse => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        Verdict::Unknown => libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        Verdict::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    };
    instruction(RETURN, value)
}

/// Binds the calling thread, which is the only one, and all that it starts.
pub fn install(program: &[Instruction]) -> Result<(), Errno> {
    let length = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let described = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: `described` names `length` valid instructions, which the kernel copies and does not write to.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const described) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// What the program answers, by running it as the kernel would.
#[cfg(test)]
pub fn answer(program: &[Instruction], number: u32, arguments: [u32; 6]) -> Verdict {
    let all = [Verdict::Allow, Verdict::Refuse, Verdict::Unknown, Verdict::Kill];
    let (mut at, mut loaded) = (0, 0);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            LOAD if k == NUMBER => loaded = number,
            LOAD if k == ARCHITECTURE => loaded = THIS_ARCHITECTURE,
            LOAD => loaded = arguments[((k - ARGUMENTS) / 8) as usize],
            JUMP => at += k as usize,
            IF_EQUAL => at += jump(loaded == k),
            IF_AT_LEAST => at += jump(loaded >= k),
            IF_ANY_BIT => at += jump(loaded & k != 0),
            RETURN => return *all.iter().find(|one| answer_with(**one).k == k).expect("a verdict"),
            other => panic!("instruction {other:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(case: Option<&Case>, value: u32) -> Verdict {
        let judge = |fine, otherwise| if fine { Verdict::Allow } else { otherwise };
        match case {
            None => Verdict::Unknown,
            Some(Case::Always(verdict)) => *verdict,
            Some(Case::Checked { check, otherwise, .. }) => match check {
                Check::OneOf(values) => judge(values.contains(&value), *otherwise),
                Check::NoneOf(values) => judge(!values.contains(&value), *otherwise),
                Check::WithoutBits(bits) => judge(value & bits == 0, *otherwise),
            },
        }
    }

    #[test]
    fn program_answers_every_number_as_the_table_says() {
        const CASES: [Case; 6] = [
            Case::Always(Verdict::Allow),
            Case::Always(Verdict::Refuse),
            Case::Always(Verdict::Unknown),
            Case::Checked { argument: 0, check: Check::OneOf(&[1, 2, 7]), otherwise: Verdict::Refuse },
            Case::Checked { argument: 3, check: Check::NoneOf(&[2]), otherwise: Verdict::Refuse },
            Case::Checked { argument: 5, check: Check::WithoutBits(6), otherwise: Verdict::Unknown },
        ];
        // Many shapes of table, from nearly empty to without a gap, by a small generator of our own.
        for seed in 1..200u32 {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 16
            };
            let numbers: Vec<u32> = (0..600).filter(|_| next() % 200 < seed).collect();
            let cases: BTreeMap<u32, Case> =
                numbers.into_iter().map(|number| (number, CASES[next() as usize % CASES.len()])).collect();
            let program = compile(&cases, Verdict::Unknown);
            for number in (0..602).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
                for value in 0..8 {
                    let expected = expected(cases.get(&number), value);
                    assert_eq!(answer(&program, number, [value; 6]), expected, "call {number} with {value}");
                }
            }
        }
    }
}
