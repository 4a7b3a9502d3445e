//! The loopback interface inside: up, and with one more address when the sandbox has one of its own.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::mount::last_errno;
use crate::step::{Result, Step};

/// Brings `lo` up; the kernel then adds 127.0.0.1 and ::1 by itself.
pub fn bring_up(address: Option<Ipv4Addr>) -> Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .step("open a socket for the loopback interface")?;
    let mut request = named("lo");
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request).step("bring the loopback interface up")?;
    let Some(address) = address else { return Ok(()) };

    let mut request = named("lo:1");
    request.ifr_ifru.ifru_addr = ipv4(address);
    ioctl(&socket, libc::SIOCSIFADDR, &mut request).step("add the sandbox's address")?;
    // Without this the whole class A, B or C network of the address would lead back inside.
    let mut request = named("lo:1");
    request.ifr_ifru.ifru_netmask = ipv4(Ipv4Addr::BROADCAST);
    ioctl(&socket, libc::SIOCSIFNETMASK, &mut request).step("narrow the sandbox's address")
}

fn named(interface: &str) -> libc::ifreq {
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn ipv4(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let mut socket_address: libc::sockaddr = unsafe { std::mem::zeroed() };
    socket_address.sa_family = libc::AF_INET as libc::sa_family_t;
    // Port in the first two bytes, address in the next four, as in `sockaddr_in`.
    for (to, from) in socket_address.sa_data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    socket_address
}

fn ioctl(
    socket: &OwnedFd,
    request: libc::c_ulong,
    argument: &mut libc::ifreq,
) -> std::result::Result<(), Errno> {
    // SAFETY: every request used here takes a pointer to one `ifreq`, which is valid for reading and writing.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, argument) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}
