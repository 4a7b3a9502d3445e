//! The supervisor: launches a sandbox, then stays in it as process 1.
//!
//! ```text
//! asb ──spawns──► launcher (root on the machine) ──forks──► init (process 1 inside, an id of its own)
//!                 joins cgroups, makes namespaces,          prepares mounts
//!                 records who init is
//!     ──order───► passes it on ───────────────────────────► mounts the image, gives up every right,
//!                 exits                                     starts, reaps, logs, answers
//! ```
//!
//! Between the two a slot is parked: nothing of it depends on what will run there.
//!
//! The launcher exits once the main process runs, so a sandbox is nobody's child and outlives the `asb` that made it.
//!
//! For a sandbox of another runtime ([`oci`]) it stays outside: process 1 of a pid namespace that holds the runtime and,
//! in one of their own, the programs of the sandbox, of which the first is this program once more ([`first`]).
//!
//! For an engine without root it also holds the network namespace that joins all sandboxes ([`hold`]).

mod beside;
mod dev;
mod dial;
mod first;
mod fork;
mod hold;
mod identity;
mod init;
mod inside;
mod launcher;
mod log;
mod loopback;
mod mount;
mod oci;
mod order;
mod own;
mod peer;
mod rights;
mod root;
mod seccomp;
mod serve;
mod skeleton;
mod spawn;
mod step;
mod streams;
mod tap;

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(first::COMMAND) => first::run(arguments.collect()),
        Some(hold::COMMAND) => hold::run(),
        _ => launcher::run(),
    }
}
