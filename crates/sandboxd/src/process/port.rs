//! Our end of a pipe or of a terminal, read and written without blocking the event loop.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

pub struct Port(AsyncFd<OwnedFd>);

impl Port {
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
        register(descriptor).map(Self)
    }

    pub fn descriptor(&self) -> &OwnedFd {
        self.0.get_ref()
    }

    /// Returns 0 at the end. A terminal ends with EIO, when its last process is gone.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|port| Ok(rustix::io::read(port.get_ref(), &mut *buffer)?));
            match read {
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Ok(0),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready.try_io(|port| Ok(rustix::io::write(port.get_ref(), bytes)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => bytes = &bytes[result?..],
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// How many bytes can be read at once.
    pub fn waiting(&self) -> u64 {
        rustix::io::ioctl_fionread(self.descriptor()).unwrap_or(0)
    }
}

/// Lets the event loop report when a descriptor is ready.
pub fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // JUSTIFICATION: there is no safe constructor, because the trait of its argument does not promise ownership.
    // SAFETY: an owned descriptor stays open, and is the same one, until the result is dropped.
    #[allow(unsafe_code)]
    let registered = unsafe { AsyncFd::register(descriptor) };
    Ok(registered?)
}
