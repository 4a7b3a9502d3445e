//! The main process as the supervisor knows it: its number, how it is signalled, and what its end means.

use asb_supervisor::wire::{self, Status};
use rustix::process::Pid;

use crate::serve::send_signal;

/// The main process, or the idle process in its place.
#[derive(Clone, Copy)]
pub struct MainProcess {
    /// Its number in the supervisor's pid namespace.
    pub pid: Pid,
    /// There is no program: something of ours waits until it is told to stop.
    pub idle: bool,
    /// The signal in place of which it was killed.
    ended_by: Option<i32>,
}

impl MainProcess {
    pub fn new(pid: Pid, idle: bool) -> Self {
        Self { pid, idle, ended_by: None }
    }

    /// Sends it a signal. The kernel drops signals that a process 1 has no handler for, so a caller would wait for the whole
    /// grace period: where the default action is to terminate, the process is killed instead.
    pub fn signal(&mut self, signal: i32) -> Result<(), wire::Failed> {
        if !ends_programs(signal) || !is_left_to_the_kernel(signal) {
            return send_signal(self.pid, signal);
        }
        send_signal(self.pid, libc::SIGKILL)?;
        self.ended_by.get_or_insert(signal);
        Ok(())
    }

    /// The status to report: the signal that was asked for, where it was killed in place of it.
    pub fn status(&self, status: Status) -> Status {
        match (self.ended_by, status) {
            (Some(signal), Status::Signal(libc::SIGKILL)) => Status::Signal(signal),
            _ => status,
        }
    }

    /// How it ends when the supervisor is told to stop.
    pub fn status_when_stopped(&self) -> Status {
        if self.idle { Status::Code(0) } else { Status::Signal(libc::SIGKILL) }
    }
}

/// Whether the default action of a signal is to terminate the process.
fn ends_programs(signal: i32) -> bool {
    const OTHERS: [i32; 8] = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    (1..=libc::SIGRTMAX()).contains(&signal) && signal != libc::SIGKILL && !OTHERS.contains(&signal)
}

/// How often the main process is looked at while it moves.
const LOOKS: usize = 16;

/// Whether the main process neither handles, ignores nor blocks the signal, as far as can be known.
///
/// A process that blocks signals and waits for them by name (`sigtimedwait`) seems to block none while it waits. Mask and place
/// come from two files: they belong together if the process was not switched to in between.
fn is_left_to_the_kernel(signal: i32) -> bool {
    let status = || std::fs::read_to_string("/proc/1/status").unwrap_or_default();
    let place = || std::fs::read_to_string("/proc/1/wchan");
    let mut before = status();
    for _ in 0..LOOKS {
        let waits = !place().is_ok_and(|place| !waits_for_signals(&place));
        let after = status();
        if waits || !default_applies(&before, signal) || !default_applies(&after, signal) {
            return false;
        }
        if switches(&before) == switches(&after) {
            return true;
        }
        before = after;
    }
    true
}

/// The lines of a `status` file that count how often the process was switched to.
fn switches(status: &str) -> Vec<&str> {
    status.lines().filter(|line| line.contains("ctxt_switches:")).collect()
}

/// Whether process 1 has ended or is about to: the kernel makes no process beside it any more.
pub fn is_ending() -> bool {
    std::fs::read_to_string("/proc/1/stat").map_or(true, |stat| is_exiting(&stat))
}

fn is_exiting(stat: &str) -> bool {
    const PF_EXITING: u32 = 0x4;
    // The second field is the program's name, and may itself hold any character.
    let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let state = fields.next().unwrap_or_default();
    let flags: u32 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or_default();
    matches!(state, "Z" | "X") || flags & PF_EXITING != 0
}

/// Whether a process that sleeps at this place in the kernel waits for signals by name.
fn waits_for_signals(place: &str) -> bool {
    place.contains("sigtimedwait")
}

fn default_applies(status: &str, signal: i32) -> bool {
    let holds = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let set = u64::from_str_radix(line.trim(), 16).ok()?;
        Some(set & (1 << (signal - 1)) != 0)
    };
    ["SigBlk:", "SigIgn:", "SigCgt:"].into_iter().all(|set| holds(set) == Some(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_left_to_the_kernel_unless_it_is_handled_ignored_or_blocked() {
        let status = |blocked: u64, ignored: u64, caught: u64| {
            format!("Name:\tx\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n")
        };
        let term = 1 << (libc::SIGTERM - 1);
        assert!(default_applies(&status(0, 0, 0), libc::SIGTERM));
        assert!(default_applies(&status(!term, !term, !term), libc::SIGTERM));
        for (blocked, ignored, caught) in [(term, 0, 0), (0, term, 0), (0, 0, term)] {
            assert!(!default_applies(&status(blocked, ignored, caught), libc::SIGTERM));
        }
        assert!(!default_applies("Name:\tx\n", libc::SIGTERM), "nothing is known");
        assert!(default_applies(&status(0, 0, 0), 64));
    }

    #[test]
    fn process_that_was_not_switched_to_has_the_same_counts() {
        let status = |count| {
            format!("SigBlk:\t0\nvoluntary_ctxt_switches:\t{count}\nnonvoluntary_ctxt_switches:\t1\n")
        };
        assert_eq!(switches(&status(7)), switches(&status(7)));
        assert_eq!(switches(&status(7)).len(), 2);
        assert_ne!(switches(&status(7)), switches(&status(8)));
    }

    #[test]
    fn process_that_exits_is_found_by_its_state_or_flags() {
        assert!(!is_exiting("1 (a) b) S 0 1 1 0 -1 4194560 119 0"));
        assert!(is_exiting("1 (sh) S 0 1 1 0 -1 4194564 119 0"));
        assert!(is_exiting("1 (sh) Z 0 1 1 0 -1 4194560 119 0"));
    }

    #[test]
    fn process_that_waits_for_signals_is_known_by_its_place_in_the_kernel() {
        assert!(waits_for_signals("do_sigtimedwait.isra.0"));
        assert!(!waits_for_signals("hrtimer_nanosleep"));
        assert!(!waits_for_signals("0"), "it runs");
    }

    #[test]
    fn only_signals_that_end_programs_end_the_main_process() {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGUSR1, 34, 64] {
            assert!(ends_programs(signal), "{signal}");
        }
        for signal in [0, -1, 65, libc::SIGKILL, libc::SIGSTOP, libc::SIGCONT, libc::SIGCHLD, libc::SIGWINCH]
        {
            assert!(!ends_programs(signal), "{signal}");
        }
    }

    #[test]
    fn main_process_that_was_killed_in_place_of_a_signal_has_ended_by_that_signal() {
        let mut main = MainProcess::new(Pid::INIT, false);
        assert_eq!(main.status(Status::Signal(libc::SIGKILL)), Status::Signal(libc::SIGKILL));
        main.ended_by = Some(libc::SIGTERM);
        assert_eq!(main.status(Status::Signal(libc::SIGKILL)), Status::Signal(libc::SIGTERM));
        assert_eq!(main.status(Status::Code(0)), Status::Code(0), "it ended by itself meanwhile");
    }
}
