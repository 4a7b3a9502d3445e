//! One gVisor kernel for several sandboxes: one of them has it, the others join it.
//!
//! ```text
//! the one that has it     state and control socket are on disk, in its directory
//! one that joins          state of its own in memory, with a copy of the other's record in it;
//!                         processes of its own for its files, in its own namespaces and cgroup
//! ```
//!
//! The runtime finds a kernel by a record of its container. It takes the process that is named there for a sign of life,
//! which is in a pid namespace that nobody here sees, so the copy names this process instead: whether the kernel lives
//! shows when its socket is used. When whoever joined ends, so do the processes for its files; the kernel notices, and
//! ends what it ran for them.

use std::path::{Path, PathBuf};

use asb_supervisor::launch::{Kernel, file};
use asb_supervisor::wire::Status;
use rustix::io::Errno;
use serde_json::{Value, json};

use super::ground;
use crate::step::{Result, Step};

/// The container of a sandbox that has joined nobody, and so what a kernel is known by.
const NAME: &str = "c";

/// What the runtime is told by, of a container and of the kernel it belongs to.
const KIND: &str = "io.kubernetes.cri.container-type";
const KERNEL: &str = "io.kubernetes.cri.sandbox-id";

/// Makes ready what the runtime finds its kernel by; answers with the name of the container. `state` is where it is to be.
pub fn prepare(kernel: &Kernel, place: &Path, state: &Path, config: &mut Value) -> Result<String> {
    match kernel {
        Kernel::Own => {}
        Kernel::Shared => {
            let kept = Path::new(file::KERNEL);
            std::fs::create_dir(kept).step_at("make directory", kept)?;
            ground::show_directory(kept, state)?;
            config["annotations"] = json!({KIND: "sandbox"});
        }
        Kernel::Joined(directory) => {
            let shown = place.join("kernel");
            ground::show_directory(directory, &shown)?;
            std::fs::create_dir(state).step_at("make directory", state)?;
            copy_record(&shown, state)?;
            config["annotations"] = json!({KIND: "container", KERNEL: NAME});
            // A kernel does not forget a container that was not deleted: no two have one name.
            let unique = "/proc/sys/kernel/random/uuid";
            let unique = std::fs::read_to_string(unique).step_at("read", unique)?;
            return Ok(format!("m-{}", unique.trim()));
        }
    }
    Ok(NAME.to_owned())
}

/// Makes a kernel known to a runtime whose state is in `to`.
fn copy_record(from: &Path, to: &Path) -> Result<()> {
    let path = record_in(from).step_at("find the record of the kernel in", from)?;
    let text = std::fs::read(&path).step_at("read", &path)?;
    let record = serde_json::from_slice(&text).map_err(std::io::Error::from).step_at("parse", &path)?;
    let record = seen_from_here(record, from).ok_or(Errno::BADMSG).step_at("understand", &path)?;
    let copy = to.join(path.file_name().unwrap_or_default());
    std::fs::write(&copy, record.to_string()).step_at("write", &copy)
}

fn record_in(directory: &Path) -> std::io::Result<PathBuf> {
    let prefix = format!("{NAME}_");
    let is_record = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&prefix) && name.ends_with(".state")
    };
    let entries = std::fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path()));
    entries.into_iter().find(is_record).ok_or_else(|| std::io::ErrorKind::NotFound.into())
}

/// The record as it is true in this pid and mount namespace; `None` for one of a form that is not known.
fn seen_from_here(mut record: Value, directory: &Path) -> Option<Value> {
    let kernel = record.get_mut("sandbox")?.as_object_mut()?;
    let socket = PathBuf::from(kernel.get("controlSocketPath")?.as_str()?);
    *kernel.get_mut("controlSocketPath")? = json!(directory.join(socket.file_name()?));
    *kernel.get_mut("pid").filter(|pid| pid.is_number())? = json!(1);
    Some(record)
}

/// How a container ended, by what the runtime says that waited for it. It says nothing when the kernel is gone.
pub fn status(said: &str) -> Status {
    let said: Value = serde_json::from_str(said).unwrap_or_default();
    let code = said["exitStatus"].as_i64().and_then(|code| i32::try_from(code).ok());
    code.map_or(Status::Signal(libc::SIGKILL), Status::Code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_leads_to_the_socket_as_it_is_called_here() {
        let record =
            json!({"sandbox": {"pid": 12, "controlSocketPath": "/run/state/runsc-c.sock", "id": "c"}});
        let seen = seen_from_here(record, Path::new("/mnt/kernel")).unwrap();
        assert_eq!(
            seen["sandbox"],
            json!({"pid": 1, "controlSocketPath": "/mnt/kernel/runsc-c.sock", "id": "c"})
        );
        assert_eq!(seen_from_here(json!({"sandbox": {"pid": 12}}), Path::new("/")), None);
    }

    #[test]
    fn end_is_told_by_who_waited_or_else_the_kernel_is_gone() {
        assert_eq!(status(r#"{"id":"m","exitStatus":7}"#), Status::Code(7));
        assert_eq!(status(""), Status::Signal(libc::SIGKILL));
    }
}
