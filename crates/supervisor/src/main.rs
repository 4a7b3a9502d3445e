//! The supervisor: launches a sandbox, then stays with it.
//!
//! ```text
//! asb ──spawns──► launcher (root on the machine) ──forks──► supervisor (an id of its own) ──forks──► process 1
//!                 joins cgroups, makes namespaces,          prepares mounts                         waits
//!                 records who the supervisor is
//!     ──order───► passes it on ───────────────────────────► mounts the image, gives up every right,
//!                 exits                                     starts, reaps, logs, answers ──order───► main process
//! ```
//!
//! The programs of the sandbox are in a pid namespace below the supervisor's, which they do not see ([`process_one`]).
//!
//! Between the two a slot is parked: nothing of it depends on what will run there.
//!
//! The launcher exits once the main process runs, so a sandbox is nobody's child and outlives the `asb` that made it.
//!
//! For a sandbox of another runtime ([`oci`]) it stays outside: process 1 of a pid namespace that holds the runtime and,
//! in one of their own, the programs of the sandbox, of which the first is this program once more ([`container_init`]).
//!
//! For an engine without root it also holds the network namespace that joins all sandboxes ([`hold`]).

mod beside;
mod cgroups;
mod container_init;
mod dev;
mod dial;
mod fork;
mod hold;
mod identity;
mod init;
mod inside;
mod launcher;
mod log;
mod loopback;
mod main_process;
mod mount;
mod oci;
mod order;
mod own;
mod peer;
mod process_one;
mod rights;
mod root;
mod seccomp;
mod serve;
mod sizes;
mod skeleton;
mod spawn;
mod step;
mod streams;
mod tap;

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(container_init::COMMAND) => container_init::run(arguments.collect()),
        Some(hold::COMMAND) => hold::run(),
        _ => launcher::run(),
    }
}
