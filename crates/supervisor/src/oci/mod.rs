//! A sandbox that another runtime makes: runc, crun, or gVisor's runsc, by their command lines.
//!
//! ```text
//! supervisor: process 1 of a pid namespace, in a mount namespace and the sandbox's network of its own
//!  ├─ RUNTIME run, exec, kill: come and go
//!  └─ the container, with namespaces of its own inside: process 1 is `container_init`, below it the programs
//! ```
//!
//! The root is mounted here, where only the runtime sees it, and the runtime keeps its state in memory here too. Programs
//! are orphaned by the runtime and so become children of this process, which learns of their ends from the kernel. When
//! it ends itself, whatever the reason, the kernel ends everything else and nothing of the runtime is left: deleting such a
//! sandbox needs neither the runtime nor its cooperation.

mod ask;
mod find;
mod ground;
mod kernel;

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use asb_supervisor::launch::{self, Failure, Kernel, Launch, Oci, Slot, file};
use asb_supervisor::wire::Status;
use rustix::process::{Gid, Pid, Uid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde_json::{Value, json};

use self::ask::Console;
pub use self::ask::{Asked, What};
use crate::beside::Shared;
use crate::identity::{Unmapped, extents};
use crate::init::{self, Begun, Kept};
use crate::inside::Inside;
use crate::log::Log;
use crate::main_process::MainProcess;
use crate::serve::{Server, Way, signals};
use crate::spawn::Program;
use crate::step::{Result, Step};
use crate::streams::MainStreams;
use crate::{cgroups, rights, root, sizes, skeleton};

/// Where the runtime keeps its own state.
const STATE: &str = "state";

/// What the runtime says of the end of a container that is waited for.
const END: &str = "end.json";

/// Half a millisecond each: as long as a start may take on a machine that is very busy.
const LISTENING_TRIES: u32 = 10_000;

/// The container and the runtime that has made it.
pub struct Container {
    program: PathBuf,
    flags: Vec<String>,
    pub gvisor: bool,
    /// What the runtime calls it.
    name: String,
    /// It runs on a kernel that other containers have as well, and does not end with this process alone.
    joined: bool,
    /// Where in this mount namespace everything is kept.
    place: PathBuf,
    inside: Inside,
    /// The main process as `config.json` has it: what others are started like.
    process: Value,
    /// Counts up, to tell the files of one command from another's.
    commands: u64,
}

/// Mounts the root, lets the runtime run the main process in it, and watches that.
pub fn begin(slot: &Slot, launch: Launch, oci: Oci, kept: Kept, shared: Option<Shared>) -> Result<Begun> {
    let Oci { program, flags, gvisor, mut config, kernel } = oci;
    let place = ground::choose(&launch, &program, &kernel);
    let scratch = ground::scratch(&place)?;
    let namespace = kept.namespace.mapped_for(&launch.main)?;
    let inside = root::stack(slot, &launch.image, Some(&namespace), (&scratch, &place))?;
    if launch.privileged {
        root::allow_set_user_id(&inside)?;
    }
    root::tell_names(&inside, &launch, &scratch)?;
    skeleton::runtime_directory(&inside, slot.first_id)?;
    root::memory_dirs(slot, &launch, shared.as_ref(), (&scratch, &place))?;
    for bind in &launch.binds {
        root::volume(&inside, bind, slot, &launch, &namespace)?;
    }
    for path in ["/proc", "/dev", "/sys", &launch.main.cwd] {
        inside.directory(Path::new(path))?;
    }
    if gvisor {
        ground::show_volumes(&inside, &launch, &place, &mut config)?;
    } else {
        skeleton::sysfs(&inside, launch.privileged)?;
        cgroups::show(&inside, slot, &scratch)?;
        sizes::show_online(&inside, &scratch, &launch)?;
        sizes::show_by_runtime(&launch, &place, &mut config)?;
    }
    shared.iter().try_for_each(|shared| ground::shared_memory(shared, &place, &mut config))?;
    let last_words = launch.last_words.as_ref();
    let last_words = last_words.map(|path| ground::last_words(path, &place, &mut config)).transpose()?;
    let name = kernel::prepare(&kernel, &place, &place.join(STATE), &mut config)?;
    ground::prepare(gvisor, &place, &kept.outer)?;
    let outside = (!gvisor).then(|| outside(slot)).transpose()?;

    // Here the supervisor stays root, and has nothing but that to write there with.
    rustix::fs::fchown(&kept.run, Some(Uid::ROOT), Some(Gid::ROOT)).step_at("take over", file::RUN)?;
    Log::make(&kept.run, 0).step_at("take over", file::LOG)?;
    let log = Log::new(kept.run, launch.log_bytes);
    let (stdio, streams) = MainStreams::make(launch.main.stdin, launch.main.terminal)?;
    let (terminal, privileged) = (launch.main.terminal, launch.privileged);
    let main = Program::from(launch.main);
    if !main.argv.is_empty() {
        find::program(&inside, &main).map_err(init::program_failure)?;
    }
    config["root"]["path"] = json!(place.join("root"));
    let map = extents(slot.first_id, &launch.extra_ids)
        .map(|[inside, outside, count]| json!({"containerID": inside, "hostID": outside, "size": count}));
    let map = Value::Array(map.collect());
    for kind in ["uidMappings", "gidMappings"] {
        config["linux"][kind] = map.clone();
    }
    let first = [launch::INIT, crate::container_init::COMMAND].map(str::to_owned);
    config["process"] =
        process(&config["process"], &main, first.into_iter().chain(main.argv.clone()), terminal);
    let process = config["process"].clone();
    let joined = matches!(kernel, Kernel::Joined(_));
    let container = Container { program, flags, gvisor, name, joined, place, inside, process, commands: 0 };
    let signals = signals().step("watch for children")?;
    let (main, streams) = container.run(&mut config, stdio, streams, outside.as_ref())?;
    ground::close()?;
    let entered = outside.map_or(Ok(()), |outside| rights::enter(&outside, None));
    entered.step("enter the supervisor's user namespace")?;
    rights::keep_nothing_but_ids(privileged)?;
    Ok((
        Server::new(Way::Oci(container), kept.listener, signals, streams),
        log,
        MainProcess::new(main, false),
        last_words,
    ))
}

impl Container {
    /// Has the runtime make the container; answers with the child to wait for.
    fn run(
        &self,
        config: &mut Value,
        stdio: crate::spawn::Stdio,
        mut streams: MainStreams,
        outside: Option<&OwnedFd>,
    ) -> Result<(Pid, MainStreams)> {
        let bundle = self.place.join("bundle");
        std::fs::create_dir(&bundle).step_at("make directory", &bundle)?;
        let (log, pid_file) = (self.place.join("run.log"), self.place.join("main.pid"));
        let mut command = self.command(&log);
        command.args(["run", "--detach", "--pid-file"]).arg(&pid_file).arg("--bundle").arg(&bundle);
        let mut console = None;
        let files = match stdio {
            crate::spawn::Stdio::Files(files) => files,
            crate::spawn::Stdio::Terminal(size) => {
                let path = self.place.join("main.sock");
                config["process"]["consoleSize"] = json!({"width": size.columns, "height": size.rows});
                console = Some(Console::listen(&path, size).map_err(init::program_failure)?);
                command.arg("--console-socket").arg(path);
                [None, None, None]
            }
        };
        let path = bundle.join("config.json");
        std::fs::write(&path, config.to_string()).step_at("write", &path)?;
        let [stdin, stdout, stderr] = files.map(|file| file.map_or_else(Stdio::null, Stdio::from));
        command.arg(&self.name).stdin(stdin).stdout(stdout).stderr(stderr);
        if let Some(outside) =
            outside.map(OwnedFd::try_clone).transpose().step("keep the user namespace open")?
        {
            // Runtimes go into the container's mount namespace and come back, which takes one that is theirs.
            let enter = move || {
                rights::enter(&outside, None)?;
                // SAFETY: the descriptor table is not among what is unshared.
                Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?)
            };
            // SAFETY: it makes two system calls.
            unsafe { command.pre_exec(enter) };
        }
        let status = command.status().step_at("run", &self.program)?;
        // Here are the last copies of the output's ends that are not the container's.
        drop(command);
        if !status.success() {
            let step = format!("run the container by {}: {}", self.program.display(), said(&log));
            return Err(Failure { step, path: None, errno: libc::EIO, program: None });
        }
        let main = match self.joined {
            true => self.wait_for_end()?,
            // For gVisor that is the process of its kernel, which ends as the main process does.
            false => read_pid(&pid_file).step_at("read", &pid_file)?,
        };
        if !self.gvisor {
            until_it_listens(main);
        }
        if let Some(console) = console {
            streams.take_terminal(console.terminal().map_err(init::program_failure)?)?;
        }
        Ok((main, streams))
    }

    /// Where the kernel outlives the container: a process of the runtime that ends as the main process does.
    fn wait_for_end(&self) -> Result<Pid> {
        let path = self.place.join(END);
        let end = std::fs::File::create(&path).step_at("create", &path)?;
        let mut command = self.command(Path::new("/dev/null"));
        command.arg("wait").arg(&self.name).stdin(Stdio::null()).stdout(end).stderr(Stdio::null());
        Ok(pid_of(&command.spawn().step_at("run", &self.program)?))
    }

    /// How the main process ended, when whoever stands for it has ended like this.
    pub fn status_of_main(&self, status: Status) -> Status {
        match self.joined {
            true => kernel::status(&std::fs::read_to_string(self.place.join(END)).unwrap_or_default()),
            false => status,
        }
    }

    /// Begins to take the container off a kernel that goes on without it.
    pub fn leave(&self) -> Option<Pid> {
        let mut command = self.command(Path::new("/dev/null"));
        command.args(["delete", "--force"]).arg(&self.name);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = self.joined.then(|| command.spawn().ok()).flatten();
        begun.as_ref().map(pid_of)
    }

    /// The runtime, about to be told a command; `log` is where it says what went wrong.
    fn command(&self, log: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .arg("--root")
            .arg(self.place.join(STATE))
            .arg("--log")
            .arg(log)
            .args(["--log-format", "json"])
            .args(&self.flags);
        command
    }
}

/// The user namespace of the supervisor and of the runtime, with the machine's ids. That of the container is below it: what
/// the kernel counts for owners, as `inotify` instances, then counts for the supervisor's id, which is this sandbox's alone,
/// and not for root of the machine. (gVisor has such things itself, and needs root of the machine for its network.)
fn outside(slot: &Slot) -> Result<OwnedFd> {
    Unmapped::make(slot.supervisor_id)?.map_all()
}

/// The kernel drops a signal to process 1 that it neither handles nor blocks, as it does a moment after `execve`.
fn until_it_listens(first: Pid) {
    let path = format!("/proc/{}/status", first.as_raw_nonzero());
    for _ in 0..LISTENING_TRIES {
        match std::fs::read_to_string(&path) {
            Ok(status) if !blocks_termination(&status) => std::thread::sleep(Duration::from_micros(500)),
            // Ready, or gone already.
            _ => return,
        }
    }
}

fn blocks_termination(status: &str) -> bool {
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    blocked.is_some_and(|mask| mask & 1 << (libc::SIGTERM - 1) != 0)
}

/// A process for the runtime: rights and limits of `like`, the rest of its own.
fn process(like: &Value, program: &Program, argv: impl IntoIterator<Item = String>, terminal: bool) -> Value {
    let Program { env, cwd, uid, gid, groups, .. } = program;
    let env: Vec<_> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut process = like.clone();
    process["args"] = argv.into_iter().collect();
    process["env"] = json!(env);
    process["cwd"] = json!(cwd);
    process["user"] = json!({"uid": uid, "gid": gid, "additionalGids": groups, "umask": 0o022});
    process["terminal"] = json!(terminal);
    if *uid != 0 {
        // As in a sandbox of our own: only root holds any.
        for set in ["effective", "permitted"] {
            process["capabilities"][set] = json!([]);
        }
    }
    process
}

/// The last complaint in a log, in one line.
fn said(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let message = |line: &str| -> Option<String> {
        let line: Value = serde_json::from_str(line).ok()?;
        Some(line["msg"].as_str()?.trim().to_owned())
    };
    let last = text.lines().rev().find_map(message);
    last.unwrap_or_else(|| "it does not say why".to_owned())
}

fn read_pid(path: &Path) -> std::io::Result<Pid> {
    let text = std::fs::read_to_string(path)?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

fn pid_of(child: &std::process::Child) -> Pid {
    Pid::from_child(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_blocks_signals_is_told_from_one_that_does_not() {
        assert!(blocks_termination("Name:\tinit\nSigBlk:\tfffffffe7ffbfeff\n"));
        assert!(!blocks_termination("Name:\tinit\nSigBlk:\t0000000000000000\n"));
    }

    #[test]
    fn only_root_holds_capabilities() {
        let like = json!({"capabilities": {"effective": ["CAP_KILL"], "bounding": ["CAP_KILL"]}, "noNewPrivileges": true});
        let program = |uid| Program {
            argv: vec!["id".to_owned()],
            env: vec![("A".to_owned(), "b".to_owned())],
            cwd: "/".to_owned(),
            uid,
            gid: 7,
            groups: vec![8],
        };
        let made = |uid| process(&like, &program(uid), ["id".to_owned()], true);
        assert_eq!(made(0)["capabilities"]["effective"], json!(["CAP_KILL"]));
        let user = made(1000);
        assert_eq!(user["capabilities"]["effective"], json!([]));
        assert_eq!(user["capabilities"]["bounding"], json!(["CAP_KILL"]));
        assert_eq!(
            (&user["args"], &user["env"], &user["terminal"]),
            (&json!(["id"]), &json!(["A=b"]), &json!(true))
        );
        assert_eq!(user["noNewPrivileges"], true);
    }
}
