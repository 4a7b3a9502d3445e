"""Runs inside a sandbox, before the script of each attack; refuses to go on anywhere else."""

import ctypes, errno, os, sys

inside = (
    os.path.exists("/.asb/sandboxd")
    # Only gVisor's own kernel has this file, and counts ids from 0.
    and (int(open("/proc/self/uid_map").read().split()[1]) >= 0x40000000 or os.path.exists("/proc/sentry-meminfo"))
)
if not inside:
    sys.exit("this is not a sandbox: nothing is tried here")

libc = ctypes.CDLL(None, use_errno=True)
REFUSED = {errno.EPERM, errno.EACCES, errno.EROFS}
escaped = []


def syscall(number, *arguments):
    result = libc.syscall(number, *[a if not isinstance(a, int) else ctypes.c_long(a) for a in arguments])
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def attempt(what, attack, *also):
    """The attack must fail, and for one of the reasons that a defence gives."""
    try:
        result = attack()
    except OSError as error:
        if error.errno in REFUSED or error.errno in also:
            print("refused", what, errno.errorcode[error.errno])
            return
        escaped.append(f"{what}: failed for another reason, {errno.errorcode.get(error.errno, error)}")
    else:
        escaped.append(f"{what}: worked, {result!r}")


def read(path):
    with open(path, "rb") as file:
        return file.read(64)


def write(path, text="1"):
    with open(path, "w") as file:
        file.write(text)


def verdict():
    if escaped:
        sys.exit("\n".join(escaped))
    print("held")
