//! Which system calls a program inside may make.
//!
//! What ordinary programs need is allowed; the calls that exist and are refused on purpose are answered with `EPERM`; the
//! rest with `ENOSYS`, so that a C library meets a call newer than these lists as it would on an older kernel, and falls
//! back. A call by another architecture's numbers ends the process.

mod program;

use std::collections::BTreeMap;

use asb_supervisor::calls::{
    self, Call, NAMESPACES, PAST_NAMESPACES, PERSONALITIES, SOCKETS, SOCKETS_PAST_NAMESPACES,
};
use rustix::io::Errno;

use self::program::{Case, Check, Instruction, Verdict};

/// The filter of every program inside.
pub struct Filter {
    program: Vec<Instruction>,
}

impl Filter {
    pub fn new() -> Self {
        Self { program: program::compile(&cases(), Verdict::Unknown) }
    }

    /// That of a privileged sandbox: all but what leads past the sandbox's own namespaces.
    pub fn privileged() -> Self {
        Self { program: program::compile(&few_cases(), Verdict::Allow) }
    }

    /// Binds the calling process for good. `no_new_privs` must be set, or it must be root of its user namespace.
    pub fn apply(&self) -> Result<(), Errno> {
        program::install(&self.program)
    }
}

/// Calls whose answer depends on an argument: its number, what it must be, and the answer otherwise.
const CHECKED: [(i64, u8, Check, Verdict); 4] = [
    (libc::SYS_clone, 0, Check::WithoutBits(NAMESPACES), Verdict::Refuse),
    (libc::SYS_socket, 0, Check::OneOf(SOCKETS), Verdict::Refuse),
    // Typing into a terminal on somebody's behalf.
    (libc::SYS_ioctl, 1, Check::NoneOf(&[libc::TIOCSTI as u32]), Verdict::Refuse),
    (libc::SYS_personality, 0, Check::OneOf(PERSONALITIES), Verdict::Unknown),
];

/// The answer to each call by its number; those not named are unknown.
fn cases() -> BTreeMap<u32, Case> {
    let plain = |calls: [&'static [Call]; 2], verdict| {
        calls.into_iter().flatten().map(move |(_, number)| (*number as u32, Case::Always(verdict)))
    };
    let checked = CHECKED.map(|(call, argument, check, otherwise)| {
        (call as u32, Case::Checked { argument, check, otherwise })
    });
    plain([calls::ALLOWED, calls::OLD_ALLOWED], Verdict::Allow)
        .chain(plain([calls::DENIED, calls::OLD_DENIED], Verdict::Refuse))
        .chain(checked)
        .collect()
}

/// The answers to the few calls that no sandbox may make.
fn few_cases() -> BTreeMap<u32, Case> {
    let refused = PAST_NAMESPACES.iter().map(|(_, number)| (*number as u32, Case::Always(Verdict::Refuse)));
    let check = Check::NoneOf(SOCKETS_PAST_NAMESPACES);
    let socket = Case::Checked { argument: 0, check, otherwise: Verdict::Refuse };
    refused.chain([(libc::SYS_socket as u32, socket)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileged_programs_are_kept_from_little() {
        let program = program::compile(&few_cases(), Verdict::Allow);
        let answer = |call: i64, value: i32| program::answer(&program, call as u32, [value as u32; 6]);
        assert_eq!(answer(libc::SYS_mount, 0), Verdict::Allow);
        assert_eq!(answer(libc::SYS_unshare, libc::CLONE_NEWUSER), Verdict::Allow);
        assert_eq!(answer(libc::SYS_socket, libc::AF_PACKET), Verdict::Allow);
        assert_eq!(answer(libc::SYS_socket, libc::AF_VSOCK), Verdict::Refuse);
        assert_eq!(answer(libc::SYS_io_uring_setup, 0), Verdict::Refuse);
        assert_eq!(
            answer(0x4000_0000 + libc::SYS_socket, libc::AF_VSOCK),
            Verdict::Unknown,
            "by other numbers"
        );
    }

    #[test]
    fn arguments_that_would_make_a_namespace_or_a_strange_socket_are_refused() {
        let program = program::compile(&cases(), Verdict::Unknown);
        let answer = |call: i64, argument: usize, value: u32| {
            let mut arguments = [0; 6];
            arguments[argument] = value;
            program::answer(&program, call as u32, arguments)
        };
        assert_eq!(answer(libc::SYS_clone, 0, libc::CLONE_NEWUSER as u32 | 17), Verdict::Refuse);
        assert_eq!(answer(libc::SYS_clone, 0, libc::CLONE_VM as u32), Verdict::Allow);
        assert_eq!(answer(libc::SYS_socket, 0, libc::AF_VSOCK as u32), Verdict::Refuse);
        assert_eq!(answer(libc::SYS_socket, 0, libc::AF_INET6 as u32), Verdict::Allow);
        assert_eq!(answer(libc::SYS_ioctl, 1, libc::TIOCSTI as u32), Verdict::Refuse);
        assert_eq!(answer(libc::SYS_personality, 0, 1), Verdict::Unknown);
        assert_eq!(answer(libc::SYS_clone3, 0, 0), Verdict::Unknown);
    }

    /// The kernel runs the program once for every call there is when it is installed: its length is time of each start.
    #[test]
    fn program_is_short() {
        let length = program::compile(&cases(), Verdict::Unknown).len();
        assert!(length < 400, "{length} instructions");
    }
}
