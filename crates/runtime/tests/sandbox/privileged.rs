//! Privileged sandboxes: what their root may do in what is their own, and what it still may not do to the machine.

use asb_runtime::driver::Name;
use asb_runtime::{Capabilities, Exit, Sandbox, Spec};

use crate::attack::{PROCESS_ONE, attack, held};
use crate::common::{World, eventually, exec, log, run, shell, volume};

on_drivers! {
    [native: Native, runc: Runc, crun: Crun, gvisor: Gvisor]
    [root_mounts_and_nests, user_who_is_not_root_has_no_capability, ids_files_and_processes_of_the_machine_stay_out_of_reach]
}

// What the machine's kernel has to refuse: gVisor's own grants some of it, and none of that is the machine's.
on_drivers! {
    [native_kernel: Native, runc_kernel: Runc, crun_kernel: Crun]
    [
        set_user_id_programs_make_root_of_the_sandbox,
        devices_and_disks_cannot_be_had,
        kernel_settings_and_modules_cannot_be_changed,
        limits_cannot_be_changed_through_cgroups,
        network_is_not_the_sandboxs_own,
        mounts_of_the_sandbox_cannot_be_undone,
        calls_past_namespaces_are_refused,
        keys_of_the_machine_cannot_be_found,
    ]
}

on_drivers! { [native_only: Native] [process_one_stays_out_of_reach, what_becomes_a_program_cannot_be_entered] }

fn privileged(spec: Spec) -> Spec {
    Spec { privileged: true, capabilities: Capabilities::ALL, ..spec }
}

async fn idle(world: &World) -> Sandbox {
    world.native.start(&privileged(world.spec(&[]))).await.expect("starts")
}

/// Every attempt of the script must be refused to root of a privileged sandbox.
async fn refused(world: World, script: &str) {
    let sandbox = idle(&world).await;
    held(&attack(&sandbox, script).await);
    world.finish().await;
}

async fn root_mounts_and_nests(world: World) {
    let tell = "set -e; test -e /.asb/sandboxd
        grep CapEff /proc/self/status | cut -f 2
        mkdir -p /tmp/m; mount -t tmpfs none /tmp/m; cd /tmp/m; mkdir lower upper work merged; echo below > lower/file
        mount -t overlay overlay -o lowerdir=/tmp/m/lower,upperdir=/tmp/m/upper,workdir=/tmp/m/work merged
        echo above > merged/file; cat lower/file upper/file
        unshare -Umpf --map-root-user --mount-proc sh -c 'echo nested $$ $(id -u) $(ls /proc | grep -c ^1$)'
        hostname other; hostname
        cd /; umount /tmp/m/merged /tmp/m";
    let spec = privileged(world.spec(&["sh", "-c", &format!("({tell}) 2>&1; echo end; exec sleep 1000")]));
    let sandbox = world.native.start(&spec).await.expect("starts");
    // gVisor gives nobody raw sockets.
    let capabilities = if spec.driver == Name::Gvisor { "000001ffffffdfff" } else { "000001ffffffffff" };
    let told = &format!("{capabilities}\nbelow\nabove\nnested 1 0 1\nother\n");
    let logged: String = told.lines().chain(["end"]).map(|line| format!("stdout F {line}\n")).collect();
    eventually(|| log(&sandbox).contains(" end\n")).await;
    assert_eq!(log(&sandbox), logged);
    let beside = run(&sandbox, &shell(tell)).await;
    assert_eq!(beside.stdout, *told, "{beside:?}");
    world.finish().await;
}

async fn user_who_is_not_root_has_no_capability(world: World) {
    let tell = "grep -E 'Cap(Prm|Eff|Amb)' /proc/self/status | cut -f 2; mkdir /tmp/m; mount -t tmpfs none /tmp/m || echo refused";
    let mut spec = privileged(world.spec(&["sh", "-c", tell]));
    (spec.process.uid, spec.process.gid, spec.process.cwd) = (1000, 1000, "/".into());
    let sandbox = world.native.start(&spec).await.expect("starts");
    eventually(|| log(&sandbox).contains("refused")).await;
    let lines = log(&sandbox);
    assert_eq!(lines.matches("stdout F 0000000000000000\n").count(), 3, "{lines}");
    world.finish().await;
}

/// As in Kubernetes, where `allowPrivilegeEscalation` is always true for them.
async fn set_user_id_programs_make_root_of_the_sandbox(world: World) {
    let sandbox = idle(&world).await;
    let script = "cp /usr/bin/id /srv/id; chmod 4755 /srv/id; setpriv --reuid 1000 --regid 1000 --clear-groups /srv/id -u";
    let output = run(&sandbox, &shell(script)).await;
    assert_eq!((output.stdout.as_str(), output.exit), ("0\n", Exit::Code(0)), "{output:?}");
    world.finish().await;
}

async fn devices_and_disks_cannot_be_had(world: World) {
    refused(
        world,
        r#"
import stat
os.makedirs("/tmp/m"); syscall(165, b"none", b"/tmp/m", b"tmpfs", 0, None)
for place in ["/tmp", "/dev", "/tmp/m"]:
    attempt("mknod of a disk in " + place, lambda: os.mknod(place + "/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)))
    attempt("mknod of memory in " + place, lambda: os.mknod(place + "/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1)))
found = set(os.listdir("/dev"))
expected = {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"}
if found - {"core"} != expected: escaped.append(f"/dev holds {found ^ expected}")
os.makedirs("/tmp/d"); write("/tmp/image", "x" * 65536)
for kind in [b"ext4", b"xfs", b"vfat", b"btrfs", b"iso9660", b"debugfs", b"tracefs", b"securityfs", b"devtmpfs"]:
    for source in [b"/dev/vda", b"/dev/sda", b"/tmp/image", b"none"]:
        attempt(f"mount {source} as {kind}", lambda: syscall(165, source, b"/tmp/d", kind, 0, None), errno.ENODEV)
attempt("a loop device", lambda: os.open("/dev/loop-control", os.O_RDWR), errno.ENOENT)
"#,
    )
    .await;
}

async fn kernel_settings_and_modules_cannot_be_changed(world: World) {
    refused(
        world,
        r#"
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/panic", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/sysrq",
             "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/fs/file-max", "/proc/sys/net/ipv4/ip_forward",
             "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity",
             "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run",
             "/sys/kernel/profiling", "/sys/module/kernel/parameters/panic"]:
    attempt("write " + path, lambda: write(path), errno.ENOENT)
for path in ["/proc/kcore", "/dev/mem", "/dev/kmsg"]:
    attempt("read " + path, lambda: read(path), errno.ENOENT)
buffer = ctypes.create_string_buffer(256)
attempt("load a module", lambda: syscall(175, buffer, 256, b""), errno.ENOSYS)
attempt("load a module by file", lambda: syscall(313, 0, b"", 0), errno.ENOSYS)
attempt("remove a module", lambda: syscall(176, b"overlay", 0), errno.ENOSYS)
attempt("another kernel", lambda: syscall(246, 0, 0, None, 0), errno.ENOSYS)
attempt("set the clock", lambda: syscall(227, 0, b"\0" * 16))
attempt("clear the kernel log", lambda: syscall(103, 5, None, 0))
attempt("account processes", lambda: syscall(163, b"/tmp/image"))
attempt("swap", lambda: syscall(167, b"/tmp", 0))
attempt("ports of devices", lambda: syscall(172, 3), errno.ENOSYS)
attempt("lower the OOM score", lambda: write("/proc/self/oom_score_adj", "-1000"))
attempt("real-time priority", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
attempt("higher priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -10))
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
def more_files():
    try: resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
    except ValueError: raise OSError(errno.EPERM, "")
attempt("more open files", more_files)
"#,
    )
    .await;
}

/// Mounting them is allowed; they are the machine's, whoever has mounted them.
async fn limits_cannot_be_changed_through_cgroups(world: World) {
    refused(
        world,
        r#"
CHANGES = {"release_agent": "/tmp/x", "notify_on_release": "1", "memory.limit_in_bytes": "-1", "memory.max": "max",
           "pids.max": "max", "cpu.cfs_quota_us": "-1", "cpu.max": "max", "cgroup.procs": "0", "tasks": "0",
           "cgroup.subtree_control": "+pids", "devices.allow": "a", "cgroup.freeze": "1"}
def try_changes(what, at):
    for directory, names, files in os.walk(at):
        for name in set(files) & set(CHANGES):
            path = os.path.join(directory, name)
            # The kernel refuses a thread that is there already nothing; so another one is moved.
            attempt(f"{what}: write {path}", lambda: write(path, CHANGES[name]))
        attempt(f"{what}: make a cgroup in {directory}", lambda: os.mkdir(directory + "/mine"))
mounted = 0
for fresh in [False, True]:
    if fresh: syscall(272, 0x2000000)
    for kind, options in [("cgroup2", None)] + [("cgroup", name) for name in
                          ["memory", "pids", "cpu", "cpu,cpuacct", "devices", "freezer", "rdma", "misc", "none,name=systemd"]]:
        at = f"/tmp/c{mounted}-{fresh}-{options}"
        os.makedirs(at, exist_ok=True)
        def mount(): syscall(165, b"none", at.encode(), kind.encode(), 0, options and options.encode())
        try: mount()
        except OSError as error:
            print("refused", kind, options, errno.errorcode[error.errno])
            continue
        mounted += 1
        try_changes(f"{kind} {options}", at)
    attempt("a hierarchy with an agent", lambda: syscall(165, b"none", b"/tmp", b"cgroup", 0, b"rdma,release_agent=/tmp/x"),
            errno.EINVAL, errno.EBUSY, errno.ENOENT, errno.ENODEV)
    attempt("a hierarchy of its own", lambda: syscall(165, b"none", b"/tmp", b"cgroup", 0, b"none,name=mine"), errno.EINVAL, errno.ENODEV)
print("mounted", mounted)
"#,
    )
    .await;
}

async fn network_is_not_the_sandboxs_own(world: World) {
    refused(
        world,
        r#"
import fcntl, socket, struct
attempt("a packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
attempt("a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
attempt("bring lo down", lambda: fcntl.ioctl(plain, 0x8914, struct.pack("16sH14x", b"lo", 0)))
attempt("another address", lambda: fcntl.ioctl(plain, 0x8916, struct.pack("16sHH4s8x", b"lo", 2, 0, bytes([10, 88, 0, 1]))))
attempt("mark packets", lambda: plain.setsockopt(socket.SOL_SOCKET, 36, 1))
attempt("enter the supervisor's network", lambda: os.open("/proc/1/ns/net", os.O_RDONLY) and plain.setsockopt(socket.SOL_SOCKET, 36, 1))
def ask_nftables():
    filter = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    # All tables there are.
    filter.send(struct.pack("=IHHII", 20, 10 << 8 | 1, 5 | 0x300, 1, 0) + b"\0" * 4)
    size, kind, flags, sequence, port, error = struct.unpack_from("=IHHIIi", filter.recv(4096))
    if kind == 2 and error: raise OSError(-error, "")
attempt("look at the rules", ask_nftables)
"#,
    )
    .await;
}

/// They were the machine's before they were the sandbox's: nothing of what they hide is shown.
async fn mounts_of_the_sandbox_cannot_be_undone(world: World) {
    refused(
        world,
        r#"
own = {errno.EINVAL, errno.EBUSY}
for path in [b"/usr", b"/sys", b"/run", b"/etc/hosts", b"/.asb/sandboxd"]:
    attempt(f"unmount {path}", lambda: syscall(166, path, 2), *own)
attempt("write to /usr", lambda: syscall(165, b"none", b"/usr", None, 32 | 4096, None))
attempt("devices in the root", lambda: syscall(165, b"none", b"/", None, 32 | 4096 | 2, None))
def settle(path, clear):
    import struct
    syscall(442, -100, path, 0, struct.pack("=QQQQ", 0, clear, 0, 0), 32)
attempt("write to /usr, the new way", lambda: settle(b"/usr", 1))
attempt("devices, the new way", lambda: settle(b"/", 4))
"#,
    )
    .await;
}

async fn calls_past_namespaces_are_refused(world: World) {
    let data = tempfile::tempdir().expect("temporary directory");
    let mut spec = privileged(world.spec(&[]));
    spec.mounts.push(volume(data.path(), "/data"));
    let sandbox = world.native.start(&spec).await.expect("starts");
    let script = r#"
import socket
buffer = ctypes.create_string_buffer(256)
attempt("a socket to the hypervisor", lambda: socket.socket(40, socket.SOCK_STREAM))
for name, number in dict(io_uring_setup=425, io_uring_enter=426, io_uring_register=427, request_key=249).items():
    attempt(name, lambda: syscall(number, buffer, buffer, buffer, buffer, buffer))
# Inode 2 is the top of the machine's disk; what is shown of it here is below that.
top = b"".join(number.to_bytes(4, "little") for number in [8, 1, 2, 0])
for path in ["/", "/usr", "/data", "/etc/hosts"]:
    place = os.open(path, os.O_RDONLY)
    attempt(f"the top of the disk, by {path}", lambda: syscall(304, place, top, os.O_RDONLY), errno.EOPNOTSUPP, errno.ESTALE)
"#;
    held(&attack(&sandbox, script).await);
    world.finish().await;
}

async fn keys_of_the_machine_cannot_be_found(world: World) {
    let key = Key::add(&format!("asb-test-{}-{}", std::process::id(), world.driver));
    let script = format!(
        r#"
for name, ring in dict(session=-3, user=-4, user_session=-5).items():
    attempt(f"find a key in {{name}}", lambda: syscall(250, 10, ring, b"user", b"{name}", 0), errno.ENOKEY)
attempt("read a key by number", lambda: syscall(250, 11, {number}, ctypes.create_string_buffer(64), 64), errno.ENOKEY)
if "{name}" in open("/proc/keys").read(): escaped.append("/proc/keys shows it")
"#,
        name = key.name,
        number = key.number
    );
    refused(world, &script).await;
}

/// A key that all programs find which this one starts.
struct Key {
    name: String,
    number: libc::c_long,
}

#[allow(unsafe_code)]
impl Key {
    fn add(name: &str) -> Self {
        let (kind, described) = (c"user", std::ffi::CString::new(name).expect("text"));
        let (payload, ring) = (b"secret", libc::KEY_SPEC_SESSION_KEYRING);
        let (first, second, bytes) = (kind.as_ptr(), described.as_ptr(), payload.as_ptr());
        // SAFETY: two are C strings, and the third points to as many bytes as the fourth says.
        let number = unsafe { libc::syscall(libc::SYS_add_key, first, second, bytes, payload.len(), ring) };
        assert!(number > 0, "the machine has keys: {}", std::io::Error::last_os_error());
        Self { name: name.to_owned(), number }
    }
}

#[allow(unsafe_code)]
impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: has no memory effects.
        unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_INVALIDATE, self.number) };
    }
}

async fn ids_files_and_processes_of_the_machine_stay_out_of_reach(world: World) {
    let quiet = std::process::Stdio::null();
    let mut victim = std::process::Command::new("sleep").arg("1000").stdout(quiet).spawn().expect("runs");
    let neighbour = idle(&world).await;
    let outside = if world.driver == Name::Gvisor { "4294967295" } else { "70000" };
    let script = format!(
        r#"
attempt("the machine's process", lambda: os.kill({victim}, 9), errno.ESRCH)
attempt("its memory", lambda: open("/proc/{victim}/mem"), errno.ENOENT)
attempt("an id of somebody else", lambda: os.setuid({outside}), errno.EINVAL)
for path in ["/etc/shadow", "/etc/ssh", "/root/.ssh", "/boot", "/lost+found"]:
    attempt("look at " + path, lambda: os.stat(path), errno.ENOENT)
attempt("write to /usr", lambda: write("/usr/bin/x"))
"#,
        victim = victim.id()
    );
    let sandbox = idle(&world).await;
    held(&attack(&sandbox, &script).await);
    assert!(victim.try_wait().expect("known").is_none(), "the victim was killed");
    victim.kill().expect("killed");
    victim.wait().expect("reaped");
    assert_eq!(run(&neighbour, &shell("echo fine")).await.stdout, "fine\n");
    world.finish().await;
}

async fn process_one_stays_out_of_reach(world: World) {
    let script = format!(
        r#"{PROCESS_ONE}
attempt("reboot", lambda: syscall(169, 0xfee1dead, 672274793, 0x1234567, None))
pid = os.fork()
if pid == 0:
    os.read(os.pipe()[0], 1)
syscall(101, 16, pid, 0, 0)
os.kill(pid, 9)
"#
    );
    // Its own processes it may trace.
    refused(world, &script).await;
}

/// On its way to `execve`, a child of the supervisor is in the sandbox's user namespace already, where root may trace everybody;
/// and once it has the memory of the program, it can be. By then it must have nothing open but what the program gets.
async fn what_becomes_a_program_cannot_be_entered(world: World) {
    let sandbox = idle(&world).await;
    let script = r#"
import time
seen, until = 0, time.monotonic() + 30
name = lambda pid: open(f"/proc/{pid}/comm").read().strip()
while not os.path.exists("/tmp/enough") and time.monotonic() < until:
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or pid == "1": continue
        try:
            if name(pid) != "asb-supervisor": continue
            seen += 1
            found = os.listdir(f"/proc/{pid}/fd")
            # The streams, and a socket to tell the supervisor that it failed.
            if name(pid) == "asb-supervisor" and len(found) > 4: escaped.append(f"{pid} has {found}")
        except OSError: pass
print("refused", seen)
if not seen: escaped.append("none was seen")
"#;
    let look = attack(&sandbox, script);
    let start = async {
        for _ in 0..500 {
            assert_eq!(run(&sandbox, &exec(&["true"])).await.exit, Exit::Code(0));
        }
        run(&sandbox, &exec(&["touch", "/tmp/enough"])).await
    };
    let (output, _) = tokio::join!(look, start);
    held(&output);
    world.finish().await;
}
