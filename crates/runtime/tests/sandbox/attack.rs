//! One test per defence: each tries the attack from inside, as root there, and must see it refused.

use std::net::TcpListener;

use asb_runtime::{Exit, Sandbox};

use crate::common::{Output, World, exec, run, shell, volume};

on_drivers! {
    [native: Native, runc: Runc, crun: Crun, gvisor: Gvisor]
    [
        nothing_of_the_host_but_its_programs_is_visible,
        no_file_of_proc_names_the_data_directory,
        what_a_sandbox_does_to_sandboxd_is_done_to_its_own_alone,
        host_loopback_and_its_sockets_cannot_be_reached,
        host_processes_can_neither_be_seen_nor_signalled,
        set_user_id_programs_give_no_rights,
        cgroups_are_out_of_reach,
        volume_gives_no_way_up_and_no_set_user_id,
        host_image_holds_no_secret_of_the_machine,
    ]
}

// What the machine's kernel has to refuse. gVisor's own grants some of it, as namespaces, and has never heard of the rest:
// none of it is the machine's.
on_drivers! {
    [native_kernel: Native, runc_kernel: Runc, crun_kernel: Crun]
    [
        mounts_cannot_be_made_moved_or_undone,
        namespaces_cannot_be_made_or_joined,
        devices_cannot_be_made_or_reached,
        kernel_settings_cannot_be_written,
        dangerous_kernel_subsystems_are_closed,
        calls_by_the_numbers_of_another_architecture_end_the_process,
        limits_and_rights_cannot_be_raised,
    ]
}

// Where another runtime has made the container, process 1 belongs to the sandbox like any other.
on_drivers! {
    [native_only: Native] [supervisor_is_not_seen_by_anything_inside, idle_process_can_neither_be_read_nor_traced]
}

/// Runs an attack inside. It first makes sure that it *is* inside.
pub async fn attack(sandbox: &Sandbox, script: &str) -> Output {
    let script = format!("{}\n{script}\nverdict()\n", include_str!("attack.py"));
    run(sandbox, &exec(&["python3", "-c", &script])).await
}

/// A sandbox of its own, in which every attempt of the script must be refused.
pub async fn refused(world: World, script: &str) {
    let sandbox = world.idle().await;
    held(&attack(&sandbox, script).await);
    world.finish().await;
}

pub fn held(output: &Output) {
    assert_eq!(output.exit, Exit::Code(0), "{}\n{}", output.stdout, output.stderr);
    assert!(output.stdout.ends_with("held\n"), "{output:?}");
    assert!(output.stdout.contains("refused"), "nothing was tried: {output:?}");
}

#[tokio::test]
async fn scripts_refuse_to_run_outside_a_sandbox() {
    let script = format!("{}\nprint('went on')", include_str!("attack.py"));
    let output = std::process::Command::new("python3").args(["-c", &script]).output().expect("runs");
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
}

async fn mounts_cannot_be_made_moved_or_undone(world: World) {
    refused(
        world,
        r#"
os.makedirs("/tmp/m")
attempt("mount tmpfs", lambda: syscall(165, b"none", b"/tmp/m", b"tmpfs", 0, None))
attempt("bind mount", lambda: syscall(165, b"/", b"/tmp/m", None, 4096, None))
attempt("remount root", lambda: syscall(165, b"none", b"/usr", None, 32 | 4096, None))
attempt("unmount /proc/sys", lambda: syscall(166, b"/proc/sys", 2))
attempt("unmount /usr", lambda: syscall(166, b"/usr", 2))
attempt("pivot_root", lambda: syscall(155, b"/tmp/m", b"/tmp/m"))
attempt("open_tree", lambda: syscall(428, -100, b"/", 1))
attempt("move_mount", lambda: syscall(429, -100, b"/usr", -100, b"/tmp/m", 0))
attempt("fsopen", lambda: syscall(430, b"tmpfs", 0))
attempt("fsmount", lambda: syscall(432, 0, 0, 0))
attempt("mount_setattr", lambda: syscall(442, -100, b"/usr", 0, b"\0" * 32, 32))
attempt("swapon", lambda: syscall(167, b"/tmp/m", 0))
"#,
    )
    .await;
}

async fn namespaces_cannot_be_made_or_joined(world: World) {
    refused(
        world,
        r#"
for name, flag in dict(user=0x10000000, mount=0x20000, pid=0x20000000, net=0x40000000, uts=0x4000000,
                       ipc=0x8000000, cgroup=0x2000000).items():
    attempt("unshare " + name, lambda: syscall(272, flag))
    attempt("clone " + name, lambda: syscall(56, flag | 17, 0, 0, 0, 0) or os._exit(0))
attempt("clone with flags above the low word", lambda: syscall(56, 0x10000000 | 17 | 1 << 40, 0, 0, 0, 0) or os._exit(0))
attempt("clone3", lambda: syscall(435, b"\0" * 88, 88), errno.ENOSYS)
own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
attempt("setns", lambda: syscall(308, own, 0))
"#,
    )
    .await;
}

async fn devices_cannot_be_made_or_reached(world: World) {
    let machine = || {
        use std::os::unix::fs::MetadataExt;
        ["/dev/null", "/dev/zero", "/dev/tty"].map(|path| {
            let found = std::fs::metadata(path).expect("there");
            (found.uid(), found.gid(), found.mode(), found.ctime(), found.ctime_nsec())
        })
    };
    let before = machine();
    refused(
        world,
        r#"
import stat
attempt("mknod of a disk", lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)))
attempt("mknod of memory", lambda: os.mknod("/dev/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1)))
attempt("mknod in shared memory", lambda: os.mknod("/dev/shm/kmsg", stat.S_IFCHR | 0o600, os.makedev(1, 11)))
found = {name for name in os.listdir("/dev")}
expected = {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"}
# Some runtimes add a link to /proc/kcore, which is masked.
if found - {"core"} != expected: escaped.append(f"/dev holds {found ^ expected}")
attempt("open a console", lambda: read("/dev/console"), errno.ENOENT)
# Its own it may spoil, at most.
for name in ["null", "zero", "tty"]:
    for change in [lambda path: os.chown(path, 0, 0), lambda path: os.chmod(path, 0)]:
        try: change("/dev/" + name)
        except OSError: pass
"#,
    )
    .await;
    assert_eq!(machine(), before, "the machine's devices are as they were");
}

async fn kernel_settings_cannot_be_written(world: World) {
    refused(
        world,
        r#"
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward",
             "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger",
             "/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run"]:
    attempt("write " + path, lambda: write(path), errno.ENOENT)
attempt("lower the OOM score", lambda: write("/proc/self/oom_score_adj", "-1000"))
attempt("change the uid map", lambda: write("/proc/self/uid_map", "0 0 1"))
attempt("set the host name", lambda: syscall(170, b"x", 1))
attempt("set the clock", lambda: syscall(227, 0, b"\0" * 16))
attempt("reboot", lambda: syscall(169, 0xfee1dead, 672274793, 0, None))
attempt("load a module", lambda: syscall(313, 0, b"", 0))
attempt("read the kernel log", lambda: syscall(103, 3, ctypes.create_string_buffer(64), 64))
for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list"]:
    try:
        if read(path): escaped.append(f"{path} can be read")
    except OSError: pass
for path in ["/sys/firmware", "/proc/acpi", "/proc/scsi"]:
    if os.path.isdir(path) and os.listdir(path): escaped.append(f"{path} can be listed")
"#,
    )
    .await;
}

/// What nobody inside can do to a process that has the memory of the supervisor.
pub const PROCESS_ONE: &str = r#"
for name in ["environ", "mem", "maps", "auxv", "stack", "syscall"]:
    attempt("read /proc/1/" + name, lambda: read("/proc/1/" + name), errno.ENOENT)
for name in ["fd", "map_files"]:
    attempt("list /proc/1/" + name, lambda: os.listdir("/proc/1/" + name))
for name in ["root", "cwd", "exe", "ns/mnt", "ns/user"]:
    attempt("follow /proc/1/" + name, lambda: os.readlink("/proc/1/" + name))
attempt("host files through /proc/1/root", lambda: os.listdir("/proc/1/root/"))
attempt("ptrace attach", lambda: syscall(101, 16, 1, 0, 0))
attempt("ptrace seize", lambda: syscall(101, 0x4206, 1, 0, 0))
target = ctypes.create_string_buffer(8)
vector = lambda address: (ctypes.c_size_t * 2)(address, 8)
here, there = vector(ctypes.addressof(target)), vector(0x400000)
attempt("process_vm_readv", lambda: syscall(310, 1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
pidfd = syscall(434, 1, 0)
attempt("take a descriptor", lambda: syscall(438, pidfd, 3, 0))
# The kernel takes these for process 1 and does nothing; it would have to be gone for the next attempt to be an error.
for number in [9, 19, 11]:
    os.kill(1, number)
attempt("read it after that", lambda: read("/proc/1/environ"))
"#;

async fn idle_process_can_neither_be_read_nor_traced(world: World) {
    refused(world, PROCESS_ONE).await;
}

async fn supervisor_is_not_seen_by_anything_inside(world: World) {
    let sandbox = world.idle().await;
    let script = r#"
own = {1, os.getpid()}
seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
if seen != own: escaped.append(f"sees {seen}, and is {own}")
if os.getppid() != 0: escaped.append(f"its parent is {os.getppid()}")
for pid in set(range(2, 300)) - own:
    attempt(f"kill {pid}", lambda: os.kill(pid, 9), errno.ESRCH)
# Everything inside but process 1 and this.
try: os.kill(-1, 9)
except ProcessLookupError: print("refused, for there is nobody")
"#;
    held(&attack(&sandbox, script).await);
    assert_eq!(run(&sandbox, &exec(&["echo", "fine"])).await.stdout, "fine\n");
    world.finish().await;
}

async fn dangerous_kernel_subsystems_are_closed(world: World) {
    refused(
        world,
        r#"
buffer = ctypes.create_string_buffer(256)
for name, number in dict(bpf=321, perf_event_open=298, userfaultfd=323, io_uring_setup=425, io_uring_enter=426,
                         io_uring_register=427, keyctl=250, add_key=248, request_key=249, open_by_handle_at=304,
                         name_to_handle_at=303, kexec_load=246, kexec_file_load=320, init_module=175, delete_module=176,
                         iopl=172, ioperm=173, quotactl=179, acct=163, lookup_dcookie=212, fanotify_init=300,
                         vhangup=153, settimeofday=164, adjtimex=159, mbind=237, move_pages=279).items():
    attempt(name, lambda: syscall(number, buffer, buffer, buffer, buffer, buffer))
import socket
for family in [17, 38, 40, 44]:
    attempt(f"socket of family {family}", lambda: socket.socket(family, socket.SOCK_RAW))
attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
import fcntl
attempt("type into a terminal", lambda: fcntl.ioctl(0, 0x5412, b"x"))
attempt("personality", lambda: syscall(135, 0x0400000), errno.ENOSYS)
attempt("a call no kernel has", lambda: syscall(9999), errno.ENOSYS)
"#,
    )
    .await;
}

async fn calls_by_the_numbers_of_another_architecture_end_the_process(world: World) {
    let sandbox = world.idle().await;
    // mov eax, 20 (getpid by 32-bit numbers); int 0x80; ret
    let script = r#"
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
print("got", function())
"#;
    let output = attack(&sandbox, script).await;
    assert_eq!(output.exit, Exit::Signal(libc::SIGSYS), "{output:?}");
    world.finish().await;
}

async fn nothing_of_the_host_but_its_programs_is_visible(world: World) {
    let sandbox = world.idle().await;
    let state = world.directory.path().display().to_string();
    let own = std::env::current_exe().expect("known").display().to_string();
    let script = format!(
        r#"
for path in ["/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/machine-id", "/etc/sudoers", "/root/.ssh", "/root/.cargo",
             "/var/lib/dpkg", "/boot", "/lost+found", {state:?}, {own:?}]:
    attempt("look at " + path, lambda: os.stat(path), errno.ENOENT)
for path, expected in {{"/root": [], "/home": ["user"], "/home/user": [], "/mnt": [], "/opt": [], "/srv": [], "/tmp": [],
                       "/var/log": []}}.items():
    if os.listdir(path) != expected: escaped.append(f"{{path}} holds {{os.listdir(path)}}")
attempt("write to /usr", lambda: write("/usr/bin/x"))
attempt("make /usr ours", lambda: os.chown("/usr/bin/env", 0, 0))
"#
    );
    held(&attack(&sandbox, &script).await);
    world.finish().await;
}

/// Neither of the main process nor of a program beside it.
async fn no_file_of_proc_names_the_data_directory(world: World) {
    let sandbox = world.start(&["sleep", "1000"]).await;
    let names = ["mountinfo", "mounts", "mountstats", "cgroup", "cmdline", "environ", "maps", "limits"];
    let files = names.map(|name| format!("/proc/1/{name} /proc/self/{name}")).join(" ");
    let script = format!("cat {files} | tr '\\0' '\\n'; readlink /proc/1/* /proc/self/*");
    let output = run(&sandbox, &shell(&script)).await;
    assert!(output.stdout.contains("sleep"), "{output:?}");
    let state = world.directory.path().file_name().expect("has a name").to_string_lossy().into_owned();
    let named: Vec<_> = output.stdout.lines().filter(|line| line.contains(&state)).collect();
    assert!(named.is_empty(), "{named:#?}");
    world.finish().await;
}

/// A root user inside may do what it likes with its own root; nobody else sees that.
async fn what_a_sandbox_does_to_sandboxd_is_done_to_its_own_alone(world: World) {
    let one = world.idle().await;
    run(&one, &shell("echo replaced > /.asb/sandboxd; chmod 777 /.asb")).await;
    let other = world.idle().await;
    let output = run(&other, &shell("/.asb/sandboxd --version; stat -c %a%u /.asb")).await;
    assert!(output.stdout.starts_with("asb-sandboxd ") && output.stdout.ends_with("7550\n"), "{output:?}");
    world.finish().await;
}

async fn host_loopback_and_its_sockets_cannot_be_reached(world: World) {
    let sandbox = world.idle().await;
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("bound").port();
    let name = format!("asb-test-{}", std::process::id());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name);
    let _abstract = std::os::unix::net::UnixListener::bind_addr(&address.expect("valid")).expect("binds");
    let script = format!(
        r#"
import socket
nowhere = (errno.ENETUNREACH, errno.EHOSTUNREACH)
attempt("host loopback", lambda: socket.create_connection(("127.0.0.1", {port}), 1), errno.ECONNREFUSED)
attempt("host abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\0{name}"), errno.ECONNREFUSED)
attempt("metadata address", lambda: socket.create_connection(("169.254.169.254", 80), 1), *nowhere)
attempt("public address", lambda: socket.create_connection(("192.0.2.1", 80), 1), *nowhere)
"#
    );
    held(&attack(&sandbox, &script).await);
    world.finish().await;
}

async fn host_processes_can_neither_be_seen_nor_signalled(world: World) {
    let sandbox = world.idle().await;
    let mut victim = std::process::Command::new("sleep")
        .arg("1000")
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("runs");
    let script = format!(
        r#"
for pid in range({victim} - 3, {victim} + 1):
    if pid != os.getpid() and pid > 3:
        attempt(f"kill {{pid}}", lambda: os.kill(pid, 9), errno.ESRCH)
seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
if len(seen) > 3: escaped.append(f"sees {{seen}}")
"#,
        victim = victim.id()
    );
    held(&attack(&sandbox, &script).await);
    assert!(victim.try_wait().expect("known").is_none(), "the victim was killed");
    victim.kill().expect("killed");
    victim.wait().expect("reaped");
    world.finish().await;
}

async fn limits_and_rights_cannot_be_raised(world: World) {
    refused(
        world,
        r#"
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
def more_files():
    try: resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
    except ValueError: raise OSError(errno.EPERM, "")
attempt("more open files", more_files)
def core():
    try: resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError: raise OSError(errno.EPERM, "")
attempt("core files", core)
status = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
for name in ["CapPrm", "CapEff", "CapBnd"]:
    held_now = int(status[name], 16)
    # chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot setfcap
    if held_now != 0x800405fb: escaped.append(f"{name} is {held_now:#x}")
for name in ["CapInh", "CapAmb"]:
    if int(status[name], 16): escaped.append(f"{name} is {status[name]}")
header, everything = b"\x22\x05\x08\x20\0\0\0\0", b"\xff" * 24
attempt("all capabilities", lambda: syscall(126, header, everything))
attempt("new privileges", lambda: syscall(157, 38, 0, 0, 0, 0), errno.EINVAL)
attempt("real-time priority", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
attempt("higher priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -10))
attempt("id of the supervisor", lambda: os.setuid(65536), errno.EINVAL)
"#,
    )
    .await;
}

async fn set_user_id_programs_give_no_rights(world: World) {
    refused(
        world,
        r#"
import shutil, subprocess
shutil.copy("/usr/bin/id", "/srv/id")
os.chmod("/srv/id", 0o6755)
for program in ["/srv/id", "/usr/bin/id"]:
    got = subprocess.run([program, "-u"], user=1000, group=1000, extra_groups=[], capture_output=True, text=True).stdout
    if got != "1000\n": escaped.append(f"{program} ran as {got!r}")
def become_root():
    pid = os.fork()
    if pid == 0:
        os.setgroups([]); os.setgid(1000); os.setuid(1000)
        try: os.setuid(0)
        except OSError as error: os._exit(error.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code: raise OSError(code, "")
attempt("back to root", become_root)
"#,
    )
    .await;
}

async fn cgroups_are_out_of_reach(world: World) {
    refused(
        world,
        r#"
# No cgroup but the sandbox's own: it has no other beside or below it, and the top of a hierarchy has a file of its own.
for directory, below, files in os.walk("/sys/fs/cgroup"):
    depth = directory.removeprefix("/sys/fs/cgroup").count("/")
    if "cgroup.procs" in files and below: escaped.append(f"{directory} has {below}")
    if "release_agent" in files: escaped.append(f"{directory} is the machine's")
    if depth > 1: escaped.append(f"{directory} is there")
    if "cgroup.procs" in files:
        pids = set(open(directory + "/cgroup.procs").read().split())
        # 0 is what cannot be seen from here: another runtime's own processes, on cgroup v2.
        others = pids - set(os.listdir("/proc")) - {"0"}
        if others: escaped.append(f"{directory} has processes of others: {others}")
        for name in sorted(files):
            attempt("write " + name, lambda: write(directory + "/" + name, "1"))
        attempt("chmod", lambda: os.chmod(directory + "/cgroup.procs", 0o777))
        attempt("remount", lambda: syscall(165, b"none", directory.encode(), None, 32 | 4096, None))
        attempt("unmount", lambda: syscall(166, directory.encode(), 2))
    attempt("make a cgroup", lambda: os.mkdir(directory + "/x"), errno.ENOENT)
for line in open("/proc/self/mountinfo"):
    if " - cgroup" in line and line.split()[3] != "/": escaped.append(f"sees where it is: {line}")
attempt("write over the processors", lambda: write("/sys/devices/system/cpu/online", "0"), errno.ENOENT, errno.EIO)
for line in open("/proc/self/cgroup"):
    name, path = line.strip().split(":", 2)[1:]
    if name in ("", "memory", "pids", "cpu") and path != "/": escaped.append(f"sees where it is: {line}")
"#,
    )
    .await;
}

async fn volume_gives_no_way_up_and_no_set_user_id(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    let mut spec = world.spec(&[]);
    spec.mounts.push(volume(data.path(), "/data"));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = r#"
import shutil, stat, subprocess
directory = os.open("/data", os.O_RDONLY)
for path in ["../etc/shadow", "../../../../etc/shadow"]:
    attempt("open " + path, lambda: os.open(path, os.O_RDONLY, dir_fd=directory), errno.ENOENT)
attempt("mknod", lambda: os.mknod("/data/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)))
shutil.copy("/usr/bin/id", "/data/id")
os.chmod("/data/id", 0o6755)
got = subprocess.run(["/data/id", "-u"], user=1000, group=1000, extra_groups=[], capture_output=True, text=True).stdout
if got != "1000\n": escaped.append(f"ran as {got!r}")
os.chroot("/data"); os.chdir("..")
attempt("out of a chroot", lambda: os.stat("../../../etc/shadow"), errno.ENOENT)
"#;
    held(&attack(&sandbox, script).await);
    world.finish().await;
}

/// Everything that can be read inside, as root there, is looked through for what only root of the machine may read.
async fn host_image_holds_no_secret_of_the_machine(world: World) {
    let sandbox = world.idle().await;
    // A secret that is certainly there, readable by root alone, where programs and their settings are.
    let marker = format!("asb-secret-{}-{:x}", std::process::id(), std::ptr::from_ref(&world) as usize);
    let mut needles = vec![marker.clone()];
    for path in ["/etc/shadow", "/etc/gshadow"] {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().filter(|line| line.split(':').nth(1).is_some_and(|hash| hash.len() > 3));
        needles.extend(lines.map(str::to_owned));
    }
    for path in ["/etc/machine-id", "/etc/hostid"] {
        needles.extend(std::fs::read_to_string(path).map(|text| text.trim().to_owned()));
    }
    let private = tempfile::Builder::new().prefix("asb-secret-").tempfile_in("/usr/local").expect("made");
    std::fs::write(private.path(), &marker).expect("written");
    needles.retain(|needle| needle.len() >= 8);
    let needles = serde_json::to_string(&needles).expect("encoded");
    let script = format!(
        r#"
import re, stat
needles = [text.encode() for text in {needles}]
key = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\r?\n[A-Za-z0-9+/=]{{16}}|ssh-(rsa|ed25519) AAAA[A-Za-z0-9+/]{{60}}")
looked = 0
for top in ["/etc", "/root", "/home", "/var", "/opt", "/srv", "/mnt", "/tmp", "/run", "/app", "/.asb", "/usr/local", "/usr/etc"]:
    for directory, names, files in os.walk(top):
        for name in files:
            path = os.path.join(directory, name)
            try:
                found = os.stat(path)
                if not stat.S_ISREG(found.st_mode) or found.st_size > 4 << 20: continue
                with open(path, "rb") as file: text = file.read()
            except OSError: continue
            looked += 1
            for needle in needles:
                if needle in text: escaped.append(f"{{path}} holds a secret of the machine")
            # Programs bring keys for their own tests; every user of the machine can read those.
            if key.search(text) and not path.startswith("/usr/"):
                escaped.append(f"{{path}} holds a private key")
if looked < 20: escaped.append(f"only {{looked}} files were looked at")
for path in ["/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh", "/root/.ssh", "/root/.docker", "/root/.kube", "/root/.aws",
             "/root/.config", "/root/.netrc", "/root/.bash_history", "/var/run/secrets", "/run/secrets", "/etc/kubernetes",
             "/etc/docker", "/etc/machine-id", "/var/lib/asb", "/etc/ssl/private", "/etc/NetworkManager", "/etc/wireguard"]:
    attempt("look at " + path, lambda: os.stat(path), errno.ENOENT)
attempt("read what only root may", lambda: read({private:?}))
for name in os.environ:
    if re.search("TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", name): escaped.append(f"the environment holds {{name}}")
"#,
        private = private.path().display().to_string(),
    );
    held(&attack(&sandbox, &script).await);
    world.finish().await;
}
