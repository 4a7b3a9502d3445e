//! The network namespace that joins the sandboxes of an engine without root, as the machine's own does for root.
//!
//! ```text
//! engine, in the machine's namespace ── threads that enter ──► hub ◄── a wire for each sandbox
//!                                                              ├── held by a process, which outlives the engine
//!                                                              └── pasta or slirp4netns: the way outside, if there is one
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use asb_supervisor::launch::Identity;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::outside::Outside;
use crate::process::Process;

/// How long the way outside may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// The namespace of this engine's sandboxes, found or made.
pub struct Hub {
    namespace: OwnedFd,
    place: PathBuf,
    record: Mutex<Record>,
    /// Those of its processes that are this program's children.
    children: Mutex<Vec<Child>>,
    /// Why nothing leads outside.
    closed: Mutex<Option<String>>,
}

/// What the next engine must know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub keeper: Identity,
    outside: Option<Identity>,
}

impl Hub {
    /// Finds what an engine before this one has left, or makes it. `program` is the supervisor.
    pub fn open(data_dir: &Path, program: &Path) -> io::Result<Self> {
        let known = read(data_dir).and_then(|record| Some((namespace(&record.keeper)?, record)));
        let mut children = Vec::new();
        let (namespace, record) = match known {
            Some(known) => known,
            None => make(data_dir, program, &mut children)?,
        };
        let (record, children) = (Mutex::new(record), Mutex::new(children));
        let hub = Self { namespace, place: data_dir.to_owned(), record, children, closed: Mutex::default() };
        hub.mend();
        Ok(hub)
    }

    /// Why nothing leads outside, if so.
    pub fn closed(&self) -> Option<String> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts what leads outside if it does not run. What cannot be started is not tried again by this engine.
    pub fn mend(&self) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if closed.is_none()
            && let Err(why) = self.open_outside()
        {
            tracing::warn!(why, "sandboxes reach nothing outside");
            *closed = Some(why);
        }
    }

    /// Does something in there, on a thread of its own: whoever enters cannot leave.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let enter = || -> io::Result<T> {
                move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            };
            let thread = std::thread::Builder::new().name("asb-hub".to_owned()).spawn_scoped(scope, enter)?;
            thread.join().map_err(|_| io::Error::other("a thread in the hub failed"))?
        })
    }

    /// Ends its processes, and so itself. For when no sandbox is left.
    pub fn close(&self) -> io::Result<()> {
        let Record { keeper, outside } = self.record().clone();
        for identity in outside.iter().chain([&keeper]) {
            if let Some(process) = Process::find(identity)? {
                process.kill()?;
            }
        }
        for mut child in self.children().drain(..) {
            child.wait()?;
        }
        match std::fs::remove_file(file(&self.place)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts what leads outside, unless it runs.
    fn open_outside(&self) -> Result<(), String> {
        let lives = |identity: &Identity| {
            Process::find(identity).is_ok_and(|found| found.is_some_and(|process| !process.has_ended()))
        };
        // One may also have been started by an engine that was killed before it could write that down.
        if self.record().outside.as_ref().is_some_and(lives) || self.leads_out() {
            return Ok(());
        }
        let outside = Outside::find().map_err(|why| why.to_string())?;
        let namespace = format!("/proc/{}/ns/net", self.record().keeper.pid);
        let log = self.place.join("outside.log");
        let spawn = || -> io::Result<Child> {
            Command::new(&outside.program)
                .args(outside.arguments(Path::new(&namespace)))
                .env_clear()
                .current_dir("/")
                // What the terminal sends to the engine is not for those who outlive it.
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(&log)?)
                .spawn()
        };
        let name = outside.program.display();
        let mut child = spawn().map_err(|error| format!("{name}: {error}"))?;
        let noted = Process::identify(child.id()).and_then(|identity| {
            self.record().outside = Some(identity);
            write(&self.place, &self.record())
        });
        let leads = noted.and_then(|()| self.wait_for_route(&mut child));
        let result = leads.map_err(|error| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            format!("{name}: {error} {}", said.lines().last().unwrap_or_default())
        });
        if result.is_err() {
            let _ = child.kill();
        }
        self.children().push(child);
        result
    }

    /// Waits until packets have a way out.
    fn wait_for_route(&self, child: &mut Child) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        while !self.leads_out() {
            if let Some(status) = child.try_wait()? {
                return Err(io::Error::other(format!("ended with {status}")));
            }
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Tens of milliseconds in all: not worth a watch.
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn leads_out(&self) -> bool {
        let routes = self.run(|| std::fs::read_to_string("/proc/thread-self/net/route"));
        routes.is_ok_and(|routes| routes.is_ok_and(|routes| leads_out(&routes)))
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn children(&self) -> std::sync::MutexGuard<'_, Vec<Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does something in a network namespace that ends with it.
#[allow(unsafe_code)]
pub fn in_new_network<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let enter = || -> io::Result<T> {
            // SAFETY: the descriptor table is not among what is unshared, and this thread ends after the work.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            Ok(work())
        };
        scope.spawn(enter).join().map_err(|_| io::Error::other("a thread failed"))?
    })
}

/// Starts the process that holds a new namespace. It stays only once it is written down where the next engine looks.
fn make(data_dir: &Path, program: &Path, children: &mut Vec<Child>) -> io::Result<(OwnedFd, Record)> {
    let mut command = Command::new(program);
    command.arg("hold").env_clear().current_dir("/");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let ready = child.stdout.take().map(|mut stdout| stdout.read_exact(&mut [0]));
    if !matches!(ready, Some(Ok(()))) {
        let output = child.wait_with_output()?;
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let record = Record { keeper: Process::identify(child.id())?, outside: None };
    let namespace = namespace(&record.keeper).ok_or(io::ErrorKind::NotFound)?;
    write(data_dir, &record)?;
    child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&[1]))?;
    children.push(child);
    Ok((namespace, record))
}

/// The network namespace of a process that lives.
fn namespace(keeper: &Identity) -> Option<OwnedFd> {
    let path = format!("/proc/{}/ns/net", keeper.pid);
    let namespace = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Looked at after opening: if the pid is another process's by now, so is the namespace.
    Process::find(keeper).ok()?.map(|_| namespace)
}

/// Whether a table of routes, as the kernel prints it, has one to everywhere.
fn leads_out(routes: &str) -> bool {
    routes.lines().skip(1).any(|line| line.split_whitespace().nth(1) == Some("00000000"))
}

fn file(data_dir: &Path) -> PathBuf {
    data_dir.join("hub.json")
}

pub(super) fn read(data_dir: &Path) -> Option<Record> {
    serde_json::from_slice(&std::fs::read(file(data_dir)).ok()?).ok()
}

fn write(data_dir: &Path, record: &Record) -> io::Result<()> {
    let fresh = data_dir.join(".hub.json.new");
    std::fs::write(&fresh, serde_json::to_vec(record)?)?;
    std::fs::rename(fresh, file(data_dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_default_route_leads_out() {
        let head = "Iface\tDestination\tGateway \tFlags\n";
        assert!(!leads_out(head));
        assert!(!leads_out(&format!("{head}outside\t0002000A\t00000000\t0001\n")));
        assert!(leads_out(&format!("{head}outside\t00000000\t0202000A\t0003\n")));
    }
}
