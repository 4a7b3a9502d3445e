//! Clones of trees: like the first in all that counts, also while somebody changes that, and by reference where the
//! filesystem can. Needs root and mkfs.xfs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use asb_runtime::tree::{clone, size};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags, getxattr, mknodat, renameat_with, setxattr};

const EVERYTHING: u64 = u64::MAX;

fn attribute(path: &Path, name: &str) -> Vec<u8> {
    let mut value = vec![0; 256];
    let length = getxattr(path, name, &mut value[..]).unwrap();
    value.truncate(length);
    value
}

#[test]
fn clone_has_contents_owners_modes_times_links_and_attributes_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let (from, into) = (dir.path().join("from"), dir.path().join("into"));
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/file"), "text").unwrap();
    fs::hard_link(from.join("a/file"), from.join("a/b/same")).unwrap();
    symlink("/etc/passwd", from.join("link")).unwrap();
    mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    std::os::unix::fs::chown(from.join("a/file"), Some(1000), Some(1001)).unwrap();
    setxattr(from.join("a/file"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    setxattr(from.join("a"), "user.note", b"hello", XattrFlags::empty()).unwrap();
    fs::set_permissions(from.join("a/file"), PermissionsExt::from_mode(0o4751)).unwrap();
    fs::set_permissions(from.join("a/b"), PermissionsExt::from_mode(0o1555)).unwrap();
    let sparse = fs::File::create(from.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 32 << 20).unwrap();
    std::os::unix::fs::lchown(from.join("link"), Some(7), Some(8)).unwrap();

    let done = clone(&from, &into, EVERYTHING).unwrap();
    assert_eq!(done.files, 6, "{done:?}");
    for name in ["a", "a/file", "a/b", "link", "fifo", "sparse", "."] {
        let of = |top: &Path| {
            let it = top.join(name).symlink_metadata().unwrap();
            let size = if it.is_dir() { 0 } else { it.size() };
            (it.mode(), it.uid(), it.gid(), size, it.mtime(), it.mtime_nsec(), it.nlink())
        };
        assert_eq!(of(&into), of(&from), "{name}");
    }
    assert_eq!(fs::read(into.join("a/file")).unwrap(), b"text");
    assert_eq!(
        into.join("a/file").metadata().unwrap().ino(),
        into.join("a/b/same").metadata().unwrap().ino()
    );
    assert_eq!(fs::read_link(into.join("link")).unwrap(), Path::new("/etc/passwd"));
    assert!(into.join("fifo").metadata().unwrap().file_type().is_fifo());
    assert_eq!(attribute(&into.join("a/file"), "security.capability"), capability);
    assert_eq!(attribute(&into.join("a"), "user.note"), b"hello");
    assert!(into.join("sparse").metadata().unwrap().blocks() * 512 < 1 << 20, "holes stay holes");
    assert_eq!(fs::read(into.join("sparse")).unwrap(), fs::read(from.join("sparse")).unwrap());
    assert!(clone(&from, &into, EVERYTHING).is_err(), "what is there is not written to");
    let small = clone(&from, &dir.path().join("small"), 1);
    assert!(small.is_err_and(|error| error.kind() == std::io::ErrorKind::StorageFull));
}

#[test]
fn nothing_from_outside_gets_into_a_clone_while_links_and_directories_are_swapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("from/swap")).unwrap();
    fs::create_dir(path("outside")).unwrap();
    fs::write(path("outside/secret"), "precious").unwrap();
    fs::write(path("from/swap/secret"), "own").unwrap();
    fs::write(path("from/file"), "own").unwrap();
    symlink(path("outside"), path("from/link")).unwrap();
    symlink(path("outside/secret"), path("from/to-file")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (one, other) in [("swap", "link"), ("file", "to-file")] {
                    let (one, other) = (path("from").join(one), path("from").join(other));
                    let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
                }
            }
        });
        let until = Instant::now() + Duration::from_millis(500);
        let mut round = 0;
        while Instant::now() < until || round < 10 {
            round += 1;
            let into = path(&format!("into-{round}"));
            clone(&path("from"), &into, EVERYTHING).unwrap();
            for entry in fs::read_dir(&into).unwrap() {
                let entry = entry.unwrap().path();
                let file =
                    if entry.symlink_metadata().unwrap().is_dir() { entry.join("secret") } else { entry };
                if file.symlink_metadata().is_ok_and(|it| it.is_file()) {
                    assert_eq!(fs::read_to_string(&file).unwrap(), "own", "{}", file.display());
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn blocks_are_shared_where_the_filesystem_can() {
    let dir = tempfile::tempdir().unwrap();
    let (image, place) = (dir.path().join("image"), dir.path().join("disk"));
    fs::create_dir(&place).unwrap();
    fs::File::create(&image).unwrap().set_len(3 << 30).unwrap();
    let made = Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image).status();
    assert!(made.expect("mkfs.xfs; it is in xfsprogs").success());
    // In a mount namespace of its own, with which the loop device goes too.
    let script = format!("mount -o loop {} {} && exec \"$@\"", image.display(), place.display());
    let done = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_on_a_disk_that_shares", "--ignored", "--nocapture"])
        .env("ASB_TEST_DISK", &place)
        .env("ASB_TEST_ELSEWHERE", dir.path().join("elsewhere"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    said.lines().filter(|line| line.contains("clone of")).for_each(|line| println!("{line}"));
}

#[test]
#[ignore = "run by blocks_are_shared_where_the_filesystem_can"]
fn child_on_a_disk_that_shares() {
    let disk = std::path::PathBuf::from(std::env::var("ASB_TEST_DISK").unwrap());
    let mib: u64 = std::env::var("ASB_TEST_MIB").map_or(64, |text| text.parse().unwrap());
    let from = disk.join("from");
    fs::create_dir(&from).unwrap();
    let block: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    for name in 0..8 {
        let mut file = fs::File::create(from.join(name.to_string())).unwrap();
        (0..mib / 8).for_each(|_| std::io::Write::write_all(&mut file, &block).unwrap());
        file.sync_all().unwrap();
    }
    let free = || {
        let disk = rustix::fs::statvfs(&disk).unwrap();
        disk.f_bavail * disk.f_frsize
    };
    let (before, begin) = (free(), Instant::now());
    let done = clone(&from, &disk.join("into"), EVERYTHING).unwrap();
    println!("clone of {mib} MiB by reference: {:?}", begin.elapsed());
    assert_eq!((done.copied, done.files), (0, 8));
    assert!(before - free() < 4 << 20, "the blocks are shared");
    assert_eq!(size(&disk.join("into")).unwrap().bytes, size(&from).unwrap().bytes, "both have them");
    fs::write(disk.join("into/0"), "changed").unwrap();
    assert_eq!(
        fs::read(from.join("0")).unwrap().len() as u64,
        (mib / 8) << 20,
        "one does not change the other"
    );

    // To another filesystem blocks cannot be shared.
    let elsewhere = std::path::PathBuf::from(std::env::var("ASB_TEST_ELSEWHERE").unwrap());
    let begin = Instant::now();
    let done = clone(&from, &elsewhere, EVERYTHING).unwrap();
    println!("clone of {mib} MiB by copying: {:?}", begin.elapsed());
    assert_eq!((done.copied, done.files), ((mib / 8 * 8) << 20, 8));
    assert_eq!(fs::read(elsewhere.join("7")).unwrap(), fs::read(from.join("7")).unwrap());
}
