//! Archives that come back as they went, and archives that attack.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::*;

fn packed(from: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    pack(from, &mut out).expect("packed");
    out
}

/// An archive by hand: names as they are given, whatever they are.
fn archive(entries: &[(tar::EntryType, &str, &str, u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, contents, mode) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        let is_link = kind.is_symlink() || kind.is_hard_link();
        if is_link {
            header.as_old_mut().linkname[..contents.len()].copy_from_slice(contents.as_bytes());
        }
        let data = if is_link { "" } else { contents };
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data.as_bytes()).expect("appended");
    }
    builder.into_inner().expect("finished")
}

use tar::EntryType::{Char, Directory, Fifo, Link, Regular, Symlink};

fn unpacked(entries: &[(tar::EntryType, &str, &str, u32)]) -> (tempfile::TempDir, Result<Contents, Error>) {
    let top = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(top.path().join("into")).expect("made");
    std::fs::write(top.path().join("outside"), "precious").expect("written");
    let result = unpack(&*archive(entries), &top.path().join("into"), Purpose::Copy);
    assert_eq!(std::fs::read_to_string(top.path().join("outside")).expect("there"), "precious");
    let around: Vec<_> = std::fs::read_dir(top.path()).expect("readable").collect();
    assert_eq!(around.len(), 2, "nothing is made outside: {around:?}");
    (top, result)
}

#[test]
fn layer_comes_back_with_its_deletions() {
    let (from, to) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let upper = [
        (Directory, "opaque", "", 0o755),
        (Regular, "opaque/.wh..wh..opq", "", 0),
        (Regular, "opaque/above", "new", 0o644),
        (Regular, ".wh.gone", "", 0),
        (Directory, "plain", "", 0o755),
        (Regular, "plain/file", "text", 0o4711),
    ];
    unpack(&*archive(&upper), from.path(), Purpose::Layer).expect("unpacked");
    let mut packed = Vec::new();
    pack_layer(from.path(), &mut packed).expect("packed");
    unpack(&*packed, to.path(), Purpose::Layer).expect("unpacked again");
    for root in [from.path(), to.path()] {
        let gone = std::fs::symlink_metadata(root.join("gone")).expect("there");
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
        let names: Vec<_> = std::fs::read_dir(root.join("opaque")).expect("readable").collect();
        assert_eq!(names.len(), 1, "{names:?}");
        let hides = |name: &str| {
            let opened = directory(&root.join(name)).expect("opened");
            let opaque = crate::powers::here().opaque();
            !xattr::read(&opened, |name| name == opaque.as_bytes()).expect("read").is_empty()
        };
        assert!(hides("opaque") && !hides("plain"));
        assert_eq!(std::fs::metadata(root.join("plain/file")).expect("there").mode() & 0o7777, 0o4711);
    }
}

#[test]
fn volume_comes_back_as_it_was() {
    let (from, to) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let path = |name: &str| from.path().join(name);
    std::fs::create_dir_all(path("a/b")).expect("made");
    std::fs::write(path("a/file"), "text").expect("written");
    std::fs::write(path(".wh.odd"), "a name like any other").expect("written");
    std::fs::set_permissions(path("a/file"), PermissionsExt::from_mode(0o4711)).expect("set");
    std::os::unix::fs::chown(path("a"), Some(1234), Some(4321)).expect("owned");
    std::fs::hard_link(path("a/file"), path("a/same")).expect("linked");
    symlink("/etc/passwd", path("a/b/link")).expect("linked");
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
        .expect("made");
    unpack(&*packed(from.path()), to.path(), Purpose::Volume).expect("unpacked");
    let meta = |name: &str| to.path().join(name).symlink_metadata().expect(name);
    assert_eq!((meta("a").uid(), meta("a").gid()), (1234, 4321));
    assert_eq!(meta("a/file").mode() & 0o7777, 0o4711);
    assert_eq!(meta("a/file").ino(), meta("a/same").ino(), "one file with two names");
    assert_eq!(std::fs::read_link(to.path().join("a/b/link")).expect("a link"), Path::new("/etc/passwd"));
    assert_eq!(std::fs::read_to_string(to.path().join(".wh.odd")).expect("there"), "a name like any other");
    assert!(meta("fifo").file_type().is_fifo());
    assert_eq!(packed(from.path()).len(), packed(to.path()).len());
}

/// A file of 64 MiB with data at 1 MiB and at its end, or a hole there.
fn sparse(path: &Path, ends_with_data: bool) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).expect("made");
    file.set_len(64 << 20).expect("set");
    file.write_all_at(&[7; 5000], 1 << 20).expect("written");
    if ends_with_data {
        file.write_all_at(b"end", (64 << 20) - 3).expect("written");
    }
}

#[test]
fn holes_of_files_stay_holes_in_the_archive_of_a_volume_and_after_it() {
    let (from, to) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    sparse(&from.path().join("hole-at-end"), false);
    sparse(&from.path().join("data-at-end"), true);
    std::fs::File::create(from.path().join("empty")).and_then(|it| it.set_len(1 << 20)).expect("made");
    // Longer than a plain header has room for.
    let long = format!("{}/{}", "d".repeat(90), "f".repeat(90));
    std::fs::create_dir(from.path().join(&long[..90])).expect("made");
    sparse(&from.path().join(&long), true);
    let mut archive = Vec::new();
    assert_eq!(pack_volume(from.path(), &mut archive).expect("packed"), Vec::<PathBuf>::new());
    assert!(archive.len() < 200_000, "{} bytes", archive.len());
    unpack(&*archive, to.path(), Purpose::Volume).expect("unpacked");
    for name in ["hole-at-end", "data-at-end", "empty", &long] {
        let [before, after] =
            [from.path(), to.path()].map(|root| std::fs::read(root.join(name)).expect("there"));
        assert!(before == after, "{name}");
        assert!(to.path().join(name).metadata().expect("there").blocks() < 200, "{name}");
    }
    // What others make of it.
    let file = to.path().join("volume.tar");
    std::fs::write(&file, &archive).expect("written");
    let other = tempfile::tempdir().expect("made");
    let done = std::process::Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(other.path()).status();
    if let Ok(status) = done {
        assert!(status.success(), "{status}");
        for name in ["hole-at-end", "data-at-end", "empty", &long] {
            let [before, after] =
                [from.path(), other.path()].map(|root| std::fs::read(root.join(name)).expect("there"));
            assert!(before == after, "{name}, by tar");
        }
    }
}

#[test]
fn file_that_becomes_shorter_while_its_volume_is_packed_is_filled_up_and_named() {
    /// Cuts a file off as soon as the archive has begun.
    struct Cutting<'a>(Vec<u8>, &'a Path);
    impl std::io::Write for Cutting<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            std::fs::OpenOptions::new().write(true).open(self.1)?.set_len(100_000)?;
            self.0.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (from, to) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let log = from.path().join("log");
    let whole = vec![7; 1_000_000];
    std::fs::write(&log, &whole).expect("written");
    std::fs::write(from.path().join("other"), "text").expect("written");
    let refused = pack(from.path(), Cutting(Vec::new(), &log));
    assert!(refused.is_err_and(|error| error.to_string().contains("log: the file became shorter")));
    std::fs::write(&log, &whole).expect("written");
    let mut out = Cutting(Vec::new(), &log);
    assert_eq!(pack_volume(from.path(), &mut out).expect("packed"), [Path::new("log")]);
    unpack(&*out.0, to.path(), Purpose::Volume).expect("unpacked");
    let log = std::fs::read(to.path().join("log")).expect("there");
    assert_eq!((log.len(), log[..100_000] == whole[..100_000], log.last()), (1_000_000, true, Some(&0)));
    assert_eq!(std::fs::read_to_string(to.path().join("other")).expect("there"), "text");
}

#[test]
fn owners_of_a_volume_come_back_whatever_their_ids_are() {
    let (from, to) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let ids = [0, 65_534, 65_536, 1_000_650_000, u32::MAX - 1];
    for id in ids {
        let path = from.path().join(id.to_string());
        std::fs::write(&path, "text").expect("written");
        std::os::unix::fs::chown(path, Some(id), Some(id)).expect("owned");
    }
    let mut archive = Vec::new();
    pack_volume(from.path(), &mut archive).expect("packed");
    let contents = unpack(&*archive, to.path(), Purpose::Volume).expect("unpacked");
    assert_eq!(contents.skipped, Vec::<String>::new());
    for id in ids {
        let meta = to.path().join(id.to_string()).metadata().expect("there");
        assert_eq!((meta.uid(), meta.gid()), (id, id));
    }
    // In an image no sandbox could have such an id.
    let layer = tempfile::tempdir().expect("made");
    let contents = unpack(&*archive, layer.path(), Purpose::Layer).expect("unpacked");
    assert_eq!(contents.skipped.len(), 3, "{contents:?}");
    assert_eq!(layer.path().join("1000650000").metadata().expect("there").uid(), 65_534);
}

/// As container engines without root keep them in a volume.
#[test]
fn overlay_that_is_kept_in_a_volume_is_packed_with_its_marks() {
    let from = tempfile::tempdir().expect("made");
    let device = |name: &str, number| {
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, from.path().join(name), kind, Mode::empty(), number)
            .expect("made");
    };
    device("deleted", 0);
    device("null", rustix::fs::makedev(1, 3));
    std::fs::create_dir(from.path().join("opaque")).expect("made");
    let opened = directory(&from.path().join("opaque")).expect("opened");
    rustix::fs::fsetxattr(&opened, "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty())
        .expect("set");
    let packed = packed(from.path());
    let mut archive = tar::Archive::new(&*packed);
    let mut seen = Vec::new();
    for entry in archive.entries().expect("readable") {
        let mut entry = entry.expect("readable");
        let marks = entry.pax_extensions().expect("readable").into_iter().flatten();
        let marks: Vec<_> =
            marks.map(|mark| mark.expect("readable").key().expect("text").to_owned()).collect();
        let path = entry.path().expect("text").display().to_string();
        seen.push((path, entry.header().entry_type() == Char, marks));
    }
    seen.sort();
    let mark = "SCHILY.xattr.user.overlay.opaque".to_owned();
    let expected = [("./", false, Vec::new()), ("deleted", true, Vec::new()), ("opaque/", false, vec![mark])];
    let plain = |path: &str| path.trim_end_matches('/').to_owned();
    let seen: Vec<_> =
        seen.into_iter().map(|(path, is_device, marks)| (plain(&path), is_device, marks)).collect();
    assert_eq!(seen, expected.map(|(path, is_device, marks)| (plain(path), is_device, marks)));
    let to = tempfile::tempdir().expect("made");
    let contents = unpack(&*packed, to.path(), Purpose::Volume).expect("unpacked");
    assert!(contents.skipped.iter().any(|it| it.contains("deleted")), "{:?}", contents.skipped);
    let opened = directory(&to.path().join("opaque")).expect("opened");
    let found = super::xattr::read(&opened, |name| name == b"user.overlay.opaque").expect("readable");
    assert_eq!(found.len(), 1, "the mark is back");
}

#[test]
fn size_counts_a_file_with_two_names_once() {
    let dir = tempfile::tempdir().expect("made");
    std::fs::write(dir.path().join("a"), vec![1; 100_000]).expect("written");
    let before = size(dir.path()).expect("counted");
    std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).expect("linked");
    symlink("/usr", dir.path().join("c")).expect("linked");
    let after = size(dir.path()).expect("counted");
    assert!(before.bytes >= 100_000 && after.bytes < before.bytes + 50_000, "{before:?} {after:?}");
    assert_eq!((before.files, after.files), (1, 2));
}

#[test]
fn packing_follows_no_link() {
    let (dir, secret) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    std::fs::write(secret.path().join("key"), "TOP-SECRET").expect("written");
    symlink(secret.path(), dir.path().join("dir")).expect("linked");
    symlink(secret.path().join("key"), dir.path().join("file")).expect("linked");
    let tar = packed(dir.path());
    assert!(!tar.windows(10).any(|bytes| bytes == b"TOP-SECRET"));
}

#[test]
fn names_that_lead_outside_are_refused_or_end_inside() {
    let (_top, result) = unpacked(&[(Regular, "../outside", "evil", 0o644)]);
    assert!(result.is_err_and(|error| error.to_string().contains("..")));
    let (_top, result) = unpacked(&[(Regular, "a/../../outside", "evil", 0o644)]);
    assert!(result.is_err());
    let (top, result) = unpacked(&[(Regular, "/outside", "evil", 0o644)]);
    assert!(
        result.is_ok() && top.path().join("into/outside").exists(),
        "absolute names are below the target"
    );
}

#[test]
fn links_that_lead_outside_are_not_made_nor_written_through() {
    for target in ["../outside", "/etc/passwd", "..", "a/../../outside", "/"] {
        let (top, result) = unpacked(&[(Symlink, "link", target, 0o777), (Regular, "fine", "x", 0o644)]);
        let contents = result.expect("the rest is unpacked");
        assert!(contents.skipped.iter().any(|it| it.contains("link")), "{target}: {contents:?}");
        assert!(top.path().join("into/link").symlink_metadata().is_err(), "{target}");
    }
    let (top, result) = unpacked(&[
        (Directory, "d", "", 0o755),
        (Symlink, "d/up", "../e", 0o777),
        (Regular, "e/file", "x", 0o644),
        (Regular, "d/up/through", "y", 0o644),
    ]);
    result.expect("links within the tree are fine");
    assert_eq!(std::fs::read_to_string(top.path().join("into/e/through")).expect("there"), "y");
    let (_top, result) = unpacked(&[(Symlink, "x", "..", 0o777), (Regular, "x/outside", "evil", 0o644)]);
    drop(result);
    // Links that are harmless where they are, and lead outside through each other.
    let (top, result) = unpacked(&[
        (Directory, "a/b", "", 0o755),
        (Directory, "c", "", 0o755),
        (Symlink, "a/b/s", "../../c", 0o777),
        (Symlink, "z", "a/b/s/../../outside", 0o777),
        (Symlink, "a/b/s/l", "../../../outside", 0o777),
        (Link, "shallow", "a/b/s", 0o777),
    ]);
    assert_eq!(result.expect("the rest is unpacked").skipped.len(), 3);
    assert!(top.path().join("into/a/b/s").symlink_metadata().is_ok(), "this one stays");
    let (_top, result) = unpacked(&[(Link, "hard", "../outside", 0o644)]);
    assert!(result.is_err(), "a hard link to a file outside");
    let (_top, result) = unpacked(&[(Link, "hard", "/etc/passwd", 0o644)]);
    assert!(result.is_err(), "a hard link to a file of the machine");
}

#[test]
fn link_that_the_receiver_had_is_replaced_and_not_written_through() {
    let top = tempfile::tempdir().expect("made");
    std::fs::create_dir(top.path().join("into")).expect("made");
    std::fs::write(top.path().join("outside"), "precious").expect("written");
    symlink("../outside", top.path().join("into/file")).expect("linked");
    let tar = archive(&[(Regular, "file", "new", 0o644)]);
    unpack(&*tar, &top.path().join("into"), Purpose::Copy).expect("unpacked");
    assert_eq!(std::fs::read_to_string(top.path().join("outside")).expect("there"), "precious");
    assert_eq!(std::fs::read_to_string(top.path().join("into/file")).expect("there"), "new");
}

#[test]
fn copies_have_no_rights_and_devices_of_others_and_belong_to_the_receiver() {
    let mut tar =
        archive(&[(Regular, "suid", "x", 0o6755), (Char, "device", "", 0o666), (Fifo, "fifo", "", 0o666)]);
    let mut header = tar::Header::from_byte_slice(&tar[..512]).clone();
    header.set_uid(1234);
    header.set_cksum();
    tar[..512].copy_from_slice(header.as_bytes());
    let dir = tempfile::tempdir().expect("made");
    let contents = unpack(&*tar, dir.path(), Purpose::Copy).expect("unpacked");
    let suid = dir.path().join("suid").metadata().expect("there");
    assert_eq!((suid.mode() & 0o7777, suid.uid()), (0o755, rustix::process::geteuid().as_raw()));
    assert_eq!(contents.skipped.len(), 2, "{contents:?}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 1);
}

#[test]
fn directory_that_is_there_is_not_removed_for_a_file() {
    for purpose in [Purpose::Copy, Purpose::Volume] {
        let dir = tempfile::tempdir().expect("made");
        std::fs::create_dir(dir.path().join("mine")).expect("made");
        std::fs::write(dir.path().join("mine/file"), "precious").expect("written");
        let tar = archive(&[(Regular, "mine", "evil", 0o644)]);
        assert!(unpack(&*tar, dir.path(), purpose).is_err());
        assert!(dir.path().join("mine/file").exists());
    }
}
