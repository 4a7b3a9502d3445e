//! An ordinary user of the machine, made for one test, whose engine must leave nothing behind.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::engine::{ASB, assert_nothing_left, eventually, kubectl, stdout, text};

/// What the user's programs see of the machine, where nobody else does: a device for ways outside that everybody may open,
/// as most machines have it, and none of the programs that are not to be there. Then they become the user's.
const BECOME: &str = r#"
mount -t tmpfs -o mode=755 none /dev/net && mknod -m 666 /dev/net/tun c 10 200 || exit 1
for hidden in $HIDDEN; do mount --bind /dev/null "$hidden" || exit 1; done
for cgroup in $CGROUPS; do echo $$ > "$cgroup/cgroup.procs" || exit 1; done
unset HIDDEN CGROUPS
exec setpriv --reuid "$1" --regid "$2" --clear-groups "$3" "${@:4}"
"#;

/// The files of users are changed by one program at a time, which others do not wait for.
static USERS: Mutex<()> = Mutex::new(());

pub struct Account {
    name: String,
    pub uid: u32,
    gid: u32,
    hidden: &'static str,
    /// That the user's programs are started in.
    cgroups: Mutex<Vec<PathBuf>>,
    /// Everybody may read it: holds the user's home, and `asb`.
    top: tempfile::TempDir,
}

impl Account {
    /// One with subordinate ids, or with none but its own.
    pub fn new(subordinate: bool) -> Self {
        Self::without("", subordinate)
    }

    /// One who does not see these programs.
    pub fn without(hidden: &'static str, subordinate: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("asb-e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let top = tempfile::tempdir().unwrap();
        std::fs::set_permissions(top.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let program = top.path().join("asb");
        std::fs::hard_link(ASB, &program).or_else(|_| std::fs::copy(ASB, &program).map(drop)).unwrap();
        let (home, ids) = (top.path().join("home"), if subordinate { "65536" } else { "0" });
        let ids = [format!("SUB_UID_COUNT={ids}"), format!("SUB_GID_COUNT={ids}")];
        let mut add = Command::new("useradd");
        add.args(["--create-home", "--user-group", "--home-dir"]).arg(&home);
        users(add.args(["-K", &ids[0], "-K", &ids[1], &name]));
        std::fs::set_permissions(&home, PermissionsExt::from_mode(0o700)).unwrap();
        let found = home.metadata().unwrap();
        Self { name, uid: found.uid(), gid: found.gid(), hidden, cgroups: Mutex::default(), top }
    }

    pub fn home(&self) -> PathBuf {
        self.top.path().join("home")
    }

    /// Where this user's engine keeps everything without being told.
    pub fn data_dir(&self) -> PathBuf {
        self.home().join(".local/state/asb")
    }

    /// A program of this user's, with nothing of the test's environment.
    pub fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-c", BECOME, "bash"]);
        command.args([self.uid, self.gid].map(|id| id.to_string())).arg(program.as_ref()).args(args);
        command.current_dir("/").env_clear().env("HOME", self.home()).env("HIDDEN", self.hidden);
        let cgroups = self.cgroups.lock().unwrap_or_else(PoisonError::into_inner);
        let cgroups: Vec<_> = cgroups.iter().filter_map(|path| path.to_str()).collect();
        command.env("CGROUPS", cgroups.join(" "));
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn asb(&self, args: &[&str]) -> Output {
        self.command(self.top.path().join("asb"), args).output().expect("asb can be started")
    }

    /// What a script in a sandbox prints, whether it succeeds or not.
    pub fn inside(&self, sandbox: &str, script: &str) -> String {
        text(&self.asb(&["exec", sandbox, "--", "sh", "-c", script]))
    }

    pub fn kubectl(&self, args: &[&str], input: &str) -> Output {
        kubectl(&self.data_dir().join("kubeconfig"), args, input)
    }

    /// Gives cgroups to the user, in which all of the user's programs are started from now on.
    pub fn delegate(&self, controllers: &[&str]) -> Delegated {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounted = |kind: &str, controller: &str| {
            let has = |line: &&str| {
                let (_, filesystem) = line.split_once(" - ").unwrap_or_default();
                filesystem.starts_with(kind) && line.rsplit([',', ' ']).any(|it| it == controller)
            };
            mounts.lines().find(has).map(|line| PathBuf::from(line.split(' ').nth(4).unwrap()))
        };
        let mut made: Vec<_> = controllers.iter().filter_map(|it| mounted("cgroup ", it)).collect();
        if made.len() < controllers.len() {
            let top = mounted("cgroup2 ", "rw").expect("this test needs cgroups");
            for controller in controllers {
                std::fs::write(top.join("cgroup.subtree_control"), format!("+{controller}")).unwrap();
            }
            made = vec![top];
        }
        for path in &mut made {
            path.push(&self.name);
            std::fs::create_dir(&*path).unwrap();
            std::os::unix::fs::chown(&*path, Some(self.uid), Some(self.gid)).unwrap();
            for file in
                ["cgroup.procs", "tasks", "cgroup.threads", "cgroup.subtree_control"].map(|it| path.join(it))
            {
                // Each version has some of them.
                let _ = std::os::unix::fs::chown(file, Some(self.uid), Some(self.gid));
            }
        }
        self.cgroups.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&made);
        Delegated(made)
    }

    /// Ends what leads outside without any warning.
    pub fn kill_outside(&self) {
        self.kill("hub.json", "/outside/pid");
    }

    fn kill(&self, file: &str, pid: &str) {
        let text = std::fs::read(self.data_dir().join(file)).unwrap();
        let pid = serde_json::from_slice::<Value>(&text).unwrap().pointer(pid).unwrap().to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }

    /// Ends the engine without any warning.
    pub fn kill_engine(&self) {
        self.kill("engine.json", "/pid");
        let lock = self.data_dir().join("lock");
        eventually("the engine is gone", || {
            std::fs::File::open(&lock).is_ok_and(|lock| lock.try_lock().is_ok())
        });
    }

    /// Removes every sandbox and stops the engine; panics if a trace of anything is left.
    pub fn finish(self) {
        if self.data_dir().join("engine.json").exists() {
            stdout(&self.asb(&["rm", "--all"]));
            stdout(&self.asb(&["down"]));
        }
        assert_nothing_left(&self.data_dir());
        eventually("no process of the user is left", || self.processes().is_empty());
    }

    /// Of the user, or of an id that the user has given to sandboxes.
    fn processes(&self) -> Vec<i32> {
        let subuid = std::fs::read_to_string("/etc/subuid").unwrap_or_default();
        let first = subuid.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(self.name.as_str())).then(|| fields.next()?.parse::<u32>().ok())?
        });
        let ours = |uid| uid == self.uid || first.is_some_and(|first| (first..first + 65_536).contains(&uid));
        let running = |path: PathBuf| {
            let status = std::fs::read_to_string(path.join("status")).ok()?;
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let uid = field("Uid:")?.split_whitespace().next()?.parse().ok()?;
            // One that ended and that nobody has collected is gone.
            let over = field("State:")?.starts_with('Z');
            (ours(uid) && !over).then(|| path.file_name()?.to_str()?.parse().ok())?
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| running(entry.path())).collect()
    }
}

impl Drop for Account {
    /// Also of a test that failed: the user exists for it alone, and so does all that the user runs.
    fn drop(&mut self) {
        let _ = self.asb(&["rm", "--all"]);
        let _ = self.asb(&["down"]);
        for pid in self.processes() {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
        users(Command::new("userdel").args(["--force", &self.name]));
    }
}

/// Cgroups that are removed in the end, which works only if nothing is left in them.
pub struct Delegated(Vec<PathBuf>);

impl Drop for Delegated {
    fn drop(&mut self) {
        for path in &self.0 {
            // Where the engine was, in the second version.
            let _ = std::fs::remove_dir(path.join("asb-engine"));
            let removed = std::fs::remove_dir(path);
            assert!(removed.is_ok() || std::thread::panicking(), "{}: {removed:?}", path.display());
        }
    }
}

fn users(command: &mut Command) {
    let _one_at_a_time = USERS.lock().unwrap_or_else(PoisonError::into_inner);
    let output = command.output().expect("the tests need useradd and userdel");
    // That the user's group or mail is not there is no failure of ours.
    assert!(output.status.success() || command.get_program() == "userdel", "{}", text(&output));
}
