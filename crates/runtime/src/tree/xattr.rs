//! Extended attributes of an open file.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{fgetxattr, flistxattr};
use rustix::io::Errno;

/// The longest list or value of attributes.
const LONGEST: usize = 64 << 10;

/// The attributes whose names are `wanted`. A filesystem without any has none.
pub fn read(file: &impl AsFd, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<(OsString, Vec<u8>)>> {
    let mut names = vec![0u8; LONGEST];
    let length = match flistxattr(file, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        length => length?,
    };
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| wanted(name)) {
        let mut value = vec![0u8; LONGEST];
        let length = match fgetxattr(file, OsStr::from_bytes(name), &mut value[..]) {
            Err(Errno::NODATA) => continue, // removed meanwhile
            length => length?,
        };
        value.truncate(length);
        found.push((OsString::from_vec(name.to_vec()), value));
    }
    Ok(found)
}

/// What users set, and what their programs may do: it means the same in every tree.
pub fn is_portable(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == b"security.capability"
}

/// The same, and who may use a file besides its owner and group: it means the same on this machine.
pub fn is_local(name: &[u8]) -> bool {
    is_portable(name) || name.starts_with(b"system.posix_acl_")
}
