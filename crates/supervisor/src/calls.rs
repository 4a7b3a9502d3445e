//! Which system calls programs inside may make, by name and number: the numbers are for our own filter, the names for
//! the runtimes that make theirs from a list.

/// A system call: `SYS_` and its name, and its number here.
pub type Call = (&'static str, i64);

macro_rules! calls {
    ($($call:ident),* $(,)?) => { &[$((stringify!($call), libc::$call)),*] };
}

/// The name that the kernel and every other program knows it by.
pub fn name(call: &Call) -> &'static str {
    call.0.trim_start_matches("SYS_")
}

/// Flags of `clone` that make a namespace.
pub const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// The only kinds of socket: no vsock to a hypervisor, no kernel crypto, no raw packets.
pub const SOCKETS: &[u32] =
    &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_NETLINK as u32];

/// Execution domains that change nothing that matters: the default, no address randomisation, and asking.
pub const PERSONALITIES: &[u32] = &[0, 0x0008, 0x0002_0000, 0x0002_0008, 0xffff_ffff];

/// Refused by name: whole subsystems that have let programs out of containers, and calls that change the machine.
#[rustfmt::skip]
pub const DENIED: &[Call] = calls![
    // mounts
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_fsopen, SYS_fsconfig, SYS_fsmount,
    SYS_fspick, SYS_move_mount, SYS_open_tree, SYS_mount_setattr, SYS_swapon,
    SYS_swapoff, SYS_quotactl, SYS_quotactl_fd, SYS_fanotify_init,
    // namespaces
    SYS_setns, SYS_unshare,
    // files by handle, past any root
    SYS_open_by_handle_at, SYS_name_to_handle_at,
    // kernel subsystems
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup,
    SYS_io_uring_enter, SYS_io_uring_register, SYS_keyctl, SYS_add_key, SYS_request_key,
    SYS_move_pages, SYS_migrate_pages, SYS_mbind, SYS_set_mempolicy,
    SYS_get_mempolicy, SYS_set_mempolicy_home_node, SYS_process_madvise,
    // the machine
    SYS_reboot, SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module,
    SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex, SYS_acct,
    SYS_syslog, SYS_sethostname, SYS_setdomainname, SYS_vhangup, SYS_lookup_dcookie,
    SYS_nfsservctl,
];

/// Refused to privileged programs too, for no namespace bounds them: a root program of the machine is asked for a key, and
/// rings make calls that no filter sees.
pub const PAST_NAMESPACES: &[Call] =
    calls![SYS_request_key, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register];

/// Likewise: sockets to a hypervisor belong to no network.
pub const SOCKETS_PAST_NAMESPACES: &[u32] = &[libc::AF_VSOCK as u32];

/// Those that newer architectures never had.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub const OLD_DENIED: &[Call] = calls![
    SYS_kexec_file_load, SYS_iopl, SYS_ioperm, SYS_uselib, SYS_ustat, SYS_sysfs,
];
#[cfg(not(target_arch = "x86_64"))]
pub const OLD_DENIED: &[Call] = &[];

/// What ordinary programs, interpreters, servers and debuggers use.
#[rustfmt::skip]
pub const ALLOWED: &[Call] = calls![
    // files
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64,
    SYS_preadv, SYS_pwritev, SYS_preadv2, SYS_pwritev2, SYS_openat, SYS_openat2,
    SYS_close, SYS_close_range, SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx,
    SYS_statfs, SYS_fstatfs, SYS_faccessat, SYS_faccessat2, SYS_fchmod,
    SYS_fchmodat, SYS_fchmodat2, SYS_fchown, SYS_fchownat, SYS_truncate,
    SYS_ftruncate, SYS_fallocate, SYS_fadvise64, SYS_readahead, SYS_sync,
    SYS_syncfs, SYS_fsync, SYS_fdatasync, SYS_sync_file_range, SYS_linkat,
    SYS_unlinkat, SYS_symlinkat, SYS_readlinkat, SYS_renameat, SYS_renameat2,
    SYS_mkdirat, SYS_mknodat, SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir,
    SYS_chroot, SYS_umask, SYS_utimensat, SYS_fcntl, SYS_flock, SYS_ioctl,
    SYS_dup, SYS_dup3, SYS_pipe2, SYS_splice, SYS_tee, SYS_vmsplice,
    SYS_sendfile, SYS_copy_file_range, SYS_memfd_create, SYS_memfd_secret,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_getxattr, SYS_lgetxattr,
    SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_removexattr,
    SYS_lremovexattr, SYS_fremovexattr, SYS_inotify_init1, SYS_inotify_add_watch,
    SYS_inotify_rm_watch, SYS_fanotify_mark,
    // waiting
    SYS_ppoll, SYS_pselect6, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait,
    SYS_epoll_pwait2, SYS_eventfd2, SYS_signalfd4, SYS_timerfd_create,
    SYS_timerfd_settime, SYS_timerfd_gettime,
    // asynchronous files, the old way
    SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_cancel, SYS_io_getevents,
    // memory
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_msync,
    SYS_mincore, SYS_madvise, SYS_mlock, SYS_mlock2, SYS_munlock, SYS_mlockall,
    SYS_munlockall, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, SYS_membarrier,
    SYS_remap_file_pages, SYS_mseal,
    // processes
    SYS_clone, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4,
    SYS_waitid, SYS_kill, SYS_tkill, SYS_tgkill, SYS_pidfd_open,
    SYS_pidfd_send_signal, SYS_pidfd_getfd, SYS_process_mrelease, SYS_getpid,
    SYS_getppid, SYS_gettid, SYS_getpgid, SYS_setpgid, SYS_getsid, SYS_setsid,
    SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list, SYS_rseq,
    SYS_prctl, SYS_seccomp, SYS_capget, SYS_capset, SYS_landlock_create_ruleset,
    SYS_landlock_add_rule, SYS_landlock_restrict_self,
    // debuggers: since Linux 4.8 a tracer cannot get a call past the filter of its tracee
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp,
    // ids
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getgroups,
    SYS_setgroups, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid,
    SYS_setresuid, SYS_getresuid, SYS_setresgid, SYS_getresgid, SYS_setfsuid,
    SYS_setfsgid,
    // scheduling and limits
    SYS_sched_yield, SYS_sched_setparam, SYS_sched_getparam, SYS_sched_setscheduler,
    SYS_sched_getscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
    SYS_sched_rr_get_interval, SYS_sched_setaffinity, SYS_sched_getaffinity,
    SYS_sched_setattr, SYS_sched_getattr, SYS_getpriority, SYS_setpriority,
    SYS_ioprio_set, SYS_ioprio_get, SYS_getrlimit, SYS_setrlimit, SYS_prlimit64,
    SYS_getrusage, SYS_times, SYS_getcpu, SYS_sysinfo, SYS_uname,
    // signals
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending, SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend, SYS_rt_sigreturn, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
    SYS_sigaltstack, SYS_restart_syscall,
    // time
    SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres,
    SYS_gettimeofday, SYS_getitimer, SYS_setitimer, SYS_timer_create,
    SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
    // locks
    SYS_futex, SYS_futex_waitv,
    // sockets
    SYS_socket, SYS_socketpair, SYS_bind, SYS_listen, SYS_accept, SYS_accept4,
    SYS_connect, SYS_shutdown, SYS_getsockname, SYS_getpeername, SYS_setsockopt,
    SYS_getsockopt, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg,
    SYS_sendmmsg, SYS_recvmmsg,
    // System V and POSIX exchange, in an IPC namespace of its own
    SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_semget, SYS_semop,
    SYS_semctl, SYS_semtimedop, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl,
    SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend, SYS_mq_timedreceive, SYS_mq_notify,
    SYS_mq_getsetattr,
    SYS_getrandom,
];

/// Those that newer architectures never had.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub const OLD_ALLOWED: &[Call] = calls![
    SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_access, SYS_chmod,
    SYS_chown, SYS_lchown, SYS_link, SYS_unlink, SYS_symlink, SYS_readlink,
    SYS_rename, SYS_mkdir, SYS_rmdir, SYS_mknod, SYS_getdents, SYS_utime,
    SYS_utimes, SYS_futimesat, SYS_dup2, SYS_pipe, SYS_inotify_init, SYS_poll,
    SYS_select, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_signalfd,
    SYS_fork, SYS_vfork, SYS_getpgrp, SYS_pause, SYS_alarm, SYS_time,
    SYS_arch_prctl, SYS_modify_ldt, SYS_set_thread_area, SYS_get_thread_area,
];
#[cfg(not(target_arch = "x86_64"))]
pub const OLD_ALLOWED: &[Call] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_both_allowed_and_refused() {
        for call in DENIED.iter().chain(OLD_DENIED) {
            assert!(!ALLOWED.contains(call) && !OLD_ALLOWED.contains(call), "{}", name(call));
        }
    }
}
