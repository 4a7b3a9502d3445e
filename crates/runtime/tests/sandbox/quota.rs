//! Volumes with a size that holds. Needs a filesystem with project quotas for temporary files: `tools/test vm` has some.

use std::path::{Path, PathBuf};

use asb_runtime::tree::{self, Purpose, quota};
use asb_runtime::{Exit, Sandbox};

use crate::attack::{attack, held};
use crate::common::{World, run, shell, volume};

const MIB: u64 = 1 << 20;

on_drivers! {
    [native: Native, runc: Runc, crun: Crun]
    [#[ignore = "needs a filesystem with project quotas: tools/test vm"] sandbox_cannot_leave_its_project]
}

/// A directory of this name with a limit.
fn limited(world: &World, name: &str, bytes: u64) -> PathBuf {
    let path = world.directory.path().join(name);
    std::fs::create_dir_all(&path).expect("made");
    quota::limit(&path, bytes).expect("limited");
    path
}

async fn with_volume(world: &World, path: &Path) -> Sandbox {
    let mut spec = world.spec(&[]);
    spec.mounts.push(volume(path, "/data"));
    world.native.start(&spec).await.expect("starts")
}

async fn write(sandbox: &Sandbox, megabytes: u64) -> Result<(), String> {
    let script = format!("test -e /.asb/sandboxd && dd if=/dev/zero of=/data/large bs=1M count={megabytes}");
    let output = run(sandbox, &shell(&script)).await;
    if output.exit == Exit::Code(0) { Ok(()) } else { Err(output.stderr) }
}

fn size(path: &Path) -> u64 {
    tree::size(path).expect("measured").bytes
}

#[tokio::test]
#[ignore = "needs a filesystem with project quotas: tools/test vm"]
async fn sandbox_has_as_much_room_as_its_volume_and_more_when_that_grows() {
    let world = World::new();
    assert!(quota::are_enforced(world.directory.path()), "this is no filesystem with project quotas");
    let path = limited(&world, "volume", 8 * MIB);
    assert_eq!(quota::limit_of(&path), Some(8 * MIB));
    let sandbox = with_volume(&world, &path).await;
    let room = run(&sandbox, &shell("df -B1048576 --output=size /data | tail -n 1")).await.stdout;
    assert_eq!(room.trim(), "8");
    let refused = write(&sandbox, 20).await.expect_err("there is room for 8");
    assert!(refused.contains("No space left") || refused.contains("Disk quota exceeded"), "{refused}");
    assert!((7 * MIB..=8 * MIB).contains(&size(&path)), "{}", size(&path));
    assert_eq!(
        run(&sandbox, &shell("echo alive > /tmp/x && cat /tmp/x")).await.stdout,
        "alive\n",
        "its root has room"
    );

    quota::limit(&path, 32 * MIB).expect("grows while it is used");
    write(&sandbox, 20).await.expect("there is room for 32");
    sandbox.delete().await.expect("deletes");
    quota::lift(&path).expect("lifted");
    assert_eq!(quota::limit_of(&path), None);
    world.finish().await;
}

async fn sandbox_cannot_leave_its_project(world: World) {
    let path = limited(&world, "volume", 8 * MIB);
    let sandbox = with_volume(&world, &path).await;
    let script = r#"
import fcntl, struct
GET, SET, FLAGS_GET, FLAGS_SET, INHERIT = 0x801c581f, 0x401c5820, 0x80086601, 0x40086602, 0x200
os.makedirs("/data/inner")
open("/data/file", "w").close()
def change(path, flags, project):
    fd = os.open(path, os.O_RDONLY)
    old = list(struct.unpack("5I8s", fcntl.ioctl(fd, GET, bytes(28))))
    if old[3] == 0: escaped.append(f"{path} has no project")
    new = [flags(old[0]), old[1], old[2], project(old[3]), old[4], old[5]]
    fcntl.ioctl(fd, SET, struct.pack("5I8s", *new))
same = lambda it: it
for path in ["/data", "/data/inner", "/data/file"]:
    for project in [0, 1]:
        attempt(f"{path} into project {project}", lambda: change(path, same, lambda _: project), errno.EINVAL, errno.EPERM)
for path in ["/data", "/data/inner"]:
    attempt(f"{path} without inheritance", lambda: change(path, lambda it: it & ~INHERIT, same), errno.EINVAL, errno.EPERM)
    def by_flags():
        fd = os.open(path, os.O_RDONLY)
        flags = struct.unpack("l", fcntl.ioctl(fd, FLAGS_GET, bytes(8)))[0]
        fcntl.ioctl(fd, FLAGS_SET, struct.pack("l", flags & ~0x20000000))
    attempt(f"{path} without the flag", by_flags, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP)
# What is made here in other ways belongs here, too.
unnamed = os.open("/data/inner", os.O_TMPFILE | os.O_RDWR, 0o600)
os.rename("/data/inner", "/data/moved")
for fd in [unnamed, os.open("/data/moved", os.O_RDONLY)]:
    if struct.unpack("5I8s", fcntl.ioctl(fd, GET, bytes(28)))[3] == 0: escaped.append(f"descriptor {fd} has no project")
"#;
    held(&attack(&sandbox, script).await);
    assert!(write(&sandbox, 20).await.is_err(), "the limit holds as before");
    quota::lift(&path).expect("lifted");
    world.finish().await;
}

/// Two directories of the same name would have the same project, were it not in use.
#[tokio::test]
#[ignore = "needs a filesystem with project quotas: tools/test vm"]
async fn no_project_is_given_twice() {
    let world = World::new();
    let (one, other) = (limited(&world, "a/volume", 8 * MIB), limited(&world, "b/volume", 64 * MIB));
    assert_eq!((quota::limit_of(&one), quota::limit_of(&other)), (Some(8 * MIB), Some(64 * MIB)));
    let sandbox = with_volume(&world, &other).await;
    write(&sandbox, 20).await.expect("there is room for 64");
    sandbox.delete().await.expect("deletes");
    std::fs::write(one.join("file"), [1; 4096]).expect("has room of its own");
    for path in [&one, &other] {
        quota::lift(path).expect("lifted");
    }
    world.finish().await;
}

/// Also what was there before the limit, and what we write ourselves.
#[tokio::test]
#[ignore = "needs a filesystem with project quotas: tools/test vm"]
async fn what_is_found_cloned_or_unpacked_counts() {
    let world = World::new();
    let old = world.directory.path().join("old");
    std::fs::create_dir_all(old.join("deep/er")).expect("made");
    std::fs::write(old.join("deep/er/file"), vec![1; 6 << 20]).expect("written");
    std::os::unix::fs::symlink("/nowhere", old.join("link")).expect("made");
    quota::limit(&old, 8 * MIB).expect("limited");
    let sandbox = with_volume(&world, &old).await;
    assert!(write(&sandbox, 4).await.is_err(), "6 of 8 are taken");
    sandbox.delete().await.expect("deletes");
    std::fs::remove_file(old.join("large")).expect("removed");

    let clone = limited(&world, "clone", 8 * MIB);
    tree::clone(&old, &clone, u64::MAX).expect("cloned into a directory that is there and empty");
    let sandbox = with_volume(&world, &clone).await;
    assert!(write(&sandbox, 4).await.is_err(), "the clone has 6, too");
    sandbox.delete().await.expect("deletes");
    std::fs::remove_file(clone.join("large")).expect("removed");

    let mut archive = Vec::new();
    tree::pack(&old, &mut archive).expect("packed");
    let small = limited(&world, "small", 4 * MIB);
    let refused = tree::unpack(&archive[..], &small, Purpose::Volume);
    assert!(refused.is_err() && size(&small) <= 4 * MIB, "{refused:?} {}", size(&small));
    for path in [&old, &clone, &small] {
        quota::lift(path).expect("lifted");
    }
    world.finish().await;
}
