//! What the kernel says of memory and processors, cut down to the limits of the sandbox.
//!
//! Files in memory, mounted over those of the kernel and never changed: they say how much there can be, not how much is in use
//! (docs/adr/0002-sizes.md).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;

use asb_supervisor::launch::Launch;
use serde_json::{Value, json};

use crate::inside::Inside;
use crate::mount;
use crate::skeleton::{READ_ONLY, quiet};
use crate::step::{Result, Step};

/// What the C library and Python count.
const ONLINE: &str = "/sys/devices/system/cpu/online";
const CPUINFO: &str = "/proc/cpuinfo";
const MEMINFO: &str = "/proc/meminfo";

/// A file and what is shown in place of its contents.
type Shown = (&'static str, String);

/// Shows all of them.
pub fn show(inside: &Inside, scratch: &OwnedFd, launch: &Launch) -> Result<()> {
    show_online(inside, scratch, launch)?;
    of_proc(launch)?.iter().try_for_each(|shown| cover(inside, scratch, shown))
}

/// Shows as online as many processors as the limit lets programs keep busy.
pub fn show_online(inside: &Inside, scratch: &OwnedFd, launch: &Launch) -> Result<()> {
    let Some(count) = launch.processors else { return Ok(()) };
    let known = std::fs::read_to_string(ONLINE).unwrap_or_default();
    first_online(&known, count).map_or(Ok(()), |text| cover(inside, scratch, &(ONLINE, text)))
}

/// Has a runtime show those of `/proc`, which it mounts itself.
pub fn show_by_runtime(launch: &Launch, place: &Path, config: &mut Value) -> Result<()> {
    for (path, text) in of_proc(launch)? {
        let source = place.join(path.trim_start_matches("/proc/"));
        std::fs::write(&source, text).step_at("write", &source)?;
        let options = ["bind", "ro", "nosuid", "nodev", "noexec"];
        let mount = json!({"type": "bind", "source": source, "destination": path, "options": options});
        config["mounts"].as_array_mut().into_iter().for_each(|mounts| mounts.push(mount.clone()));
    }
    Ok(())
}

/// In a privileged sandbox nothing covers a file of `/proc`: the kernel would let no container inside mount a `/proc` of its own.
fn of_proc(launch: &Launch) -> Result<Vec<Shown>> {
    if launch.privileged {
        return Ok(Vec::new());
    }
    let mut shown = Vec::new();
    let there = usable_memory();
    if let Some(bytes) = launch.memory_bytes.filter(|bytes| *bytes < there) {
        shown.push((MEMINFO, meminfo(bytes)));
    }
    if let Some(count) = launch.processors {
        let file = File::open(CPUINFO).step_at("open", CPUINFO)?;
        let text = first_processors(BufReader::new(file), count).step_at("read", CPUINFO)?;
        shown.extend(text.map(|text| (CPUINFO, text)));
    }
    Ok(shown)
}

fn cover(inside: &Inside, scratch: &OwnedFd, (path, text): &Shown) -> Result<()> {
    // A kernel without the file has nothing to hide.
    let Ok(target) = inside.find(Path::new(path)) else { return Ok(()) };
    let scratch = Inside::of(scratch, 0)?;
    let name = Path::new("/").join(Path::new(path).file_name().unwrap_or_default());
    scratch.write(&name, text.as_bytes())?;
    let view = mount::view_of(&scratch.find(&name).step_at("find", &name)?).step_at("view", &name)?;
    mount::restrict(&view, quiet() | READ_ONLY, false).step_at("make read-only", path)?;
    mount::attach(&view, &target).step_at("attach", path)
}

/// Bytes that the machine has.
fn usable_memory() -> u64 {
    let known = rustix::system::sysinfo();
    known.totalram.saturating_mul(known.mem_unit.into())
}

/// All of the limit as free: more there will never be, and how much is left no file that does not change can say.
fn meminfo(bytes: u64) -> String {
    const ALL: [&str; 3] = ["MemTotal", "MemFree", "MemAvailable"];
    const NONE: [&str; 15] = [
        "Buffers",
        "Cached",
        "SwapCached",
        "Active",
        "Inactive",
        "SwapTotal",
        "SwapFree",
        "Dirty",
        "Writeback",
        "AnonPages",
        "Mapped",
        "Shmem",
        "Slab",
        "SReclaimable",
        "SUnreclaim",
    ];
    let lines = ALL.map(|name| (name, bytes / 1024)).into_iter().chain(NONE.map(|name| (name, 0)));
    lines.map(|(name, size)| format!("{:<16}{size:>8} kB\n", format!("{name}:"))).collect()
}

/// The first processors of a list such as `0-3,8`; `None`: that is all of them.
fn first_online(online: &str, count: u32) -> Option<String> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    let all: Vec<u32> = online.trim().split(',').filter_map(range).flatten().collect();
    let count = usize::try_from(count.max(1)).ok().filter(|count| *count < all.len())?;
    let some: Vec<_> = all[..count].iter().map(u32::to_string).collect();
    Some(format!("{}\n", some.join(",")))
}

/// The first paragraphs of `/proc/cpuinfo`, one per processor; `None`: that is all of them. Reads no further.
fn first_processors(mut cpuinfo: impl BufRead, count: u32) -> std::io::Result<Option<String>> {
    let (mut text, mut complete) = (String::new(), 0);
    while complete < count.max(1) {
        let from = text.len();
        if cpuinfo.read_line(&mut text)? == 0 {
            return Ok(None);
        }
        complete += u32::from(text[from..].trim().is_empty());
    }
    let more = cpuinfo.fill_buf()?;
    Ok((!more.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_processors_are_the_first_of_those_that_there_are() {
        for (online, count, expected) in [
            ("0-3\n", 1, Some("0\n")),
            ("0-3\n", 3, Some("0,1,2\n")),
            ("0-1,4-5\n", 3, Some("0,1,4\n")),
            ("0-3\n", 4, None),
            ("0\n", 8, None),
            ("0-3\n", 0, Some("0\n")),
            ("", 1, None),
        ] {
            assert_eq!(first_online(online, count).as_deref(), expected, "{online:?} {count}");
        }
        let cpuinfo = "processor\t: 0\nflags\t: a\n\nprocessor\t: 1\n\n";
        let first = |count| first_processors(cpuinfo.as_bytes(), count).expect("readable");
        assert_eq!(first(1).as_deref(), Some("processor\t: 0\nflags\t: a\n\n"));
        assert_eq!((first(2), first(3)), (None, None));
    }

    #[test]
    fn memory_is_written_as_the_kernel_writes_it() {
        let text = meminfo(256 << 20);
        assert!(text.starts_with("MemTotal:         262144 kB\nMemFree:          262144 kB\n"), "{text}");
        assert!(text.contains("SwapTotal:             0 kB\n"), "{text}");
    }
}
