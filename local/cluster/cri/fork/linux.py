"""System calls that Python 3.11 lacks, through ctypes: namespaces, mounts, capabilities.

Each function raises OSError that names the call and its subject. Only the fork server and its
children use them (`forkserver.py`, `rootfs.py`, `child.py`), never the gRPC side.
"""

import ctypes
import os
import platform
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_CLONE_PARENT = 0x00008000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 4096, 16384, 1 << 18, 1 << 19
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 1
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
# PyDLL keeps the interpreter lock during the call: after a raw clone the child must hold it.
_libc_with_lock = ctypes.PyDLL(None, use_errno=True)

_NAMES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO "
    "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG "
    "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)
CAPABILITIES = tuple(_NAMES.split())
"""Names by number (capability.h), without CAP_."""


class _MountAttr(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def _check(result: int, what: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
    return result


def unshare(flags: int) -> None:
    """Move this process into new namespaces (CLONE_NEW…)."""
    _check(_libc.unshare(flags), f"unshare {flags:#x}")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace that `fd` holds."""
    _check(_libc.setns(fd, kind), f"setns {kind:#x}")


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); an empty `kind` is a bind or a change of propagation."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {kind or 'bind'} {source} on {target} ({data})")


def bind(source: str, target: str) -> None:
    """Recursive bind mount."""
    mount(source, target, flags=MS_BIND | MS_REC)


def make_readonly(target: str, *, recursive: bool) -> None:
    """Set a mount read-only by mount_setattr, with those below it if `recursive`."""
    attr = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(target.encode()),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        ctypes.byref(attr),
        ctypes.c_size_t(ctypes.sizeof(attr)),
    )
    _check(result, f"mount_setattr read-only {target}")


def enter_root(new_root: str) -> None:
    """Make `new_root`, a mount point, the root, and unmount the old one."""
    os.chdir(new_root)
    _check(_libc.pivot_root(b".", b"."), f"pivot_root {new_root}")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")
    os.chdir("/")


def clone_sibling() -> int:
    """fork() whose child belongs to the caller's parent; the caller must be single-threaded."""
    flags = _CLONE_PARENT | signal.SIGCHLD
    number = _SYS_CLONE[platform.machine()]
    zero = ctypes.c_ulong(0)
    pid = _libc_with_lock.syscall(
        ctypes.c_long(number), ctypes.c_ulong(flags), zero, zero, zero, zero
    )
    return _check(pid, "clone")


def die_with_parent() -> None:
    """SIGKILL when the parent *thread* ends. A change of user clears this: call it again."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl pdeathsig")


def no_new_privileges() -> None:
    """No exec may gain privileges from now on."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl no_new_privs")


def bound_capabilities(keep: frozenset[int]) -> None:
    """Drop all but `keep` from the bounding set."""
    for number in range(len(CAPABILITIES)):
        # EINVAL: this kernel knows fewer capabilities.
        if number not in keep:
            _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)


def set_capabilities(keep: frozenset[int]) -> None:
    """Set effective and permitted to `keep`, inheritable to none."""
    mask = sum(1 << number for number in keep)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check(_libc.capset(header, data), "capset")


def own_capabilities() -> frozenset[int]:
    """The permitted capabilities of this process."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("CapPrm:"))
    mask = int(line.split()[1], 16)
    return frozenset(n for n in range(len(CAPABILITIES)) if mask >> n & 1)
