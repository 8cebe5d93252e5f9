"""Runs a program whose chown calls succeed without doing anything.

`python -m local.cluster.control.unowned PROGRAM …`, for the kubelet of a cluster of an ordinary
user. Only uid 0 is mapped there, so the kernel refuses `lchown(token, 65532)` with EINVAL, and no
pod with `runAsUser` and a token would start. A seccomp filter answers instead: it needs no
privilege, no setuid program and no subordinate uids. The answer is close to the truth: the pod's
process is uid 0 of the same namespace, so it owns every file that the kubelet wrote.
"""

import ctypes
import os
import platform
import struct
import sys

# seccomp_data: the call's number at offset 0, the architecture at offset 4 (linux/seccomp.h).
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _SUCCEED = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ERRNO with errno 0
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
# machine → (audit architecture, numbers of chown, fchown, lchown and fchownat)
_CALLS = {
    "x86_64": (0xC000003E, (92, 93, 94, 260)),
    "aarch64": (0xC00000B7, (54, 55)),
}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def filter_of(machine: str) -> bytes:
    """The BPF program for `platform.machine()`. ValueError for a machine that is not known."""
    if machine not in _CALLS:
        raise ValueError(
            f"a cluster of an ordinary user needs {' or '.join(sorted(_CALLS))}, this machine is "
            f"{machine}: run it as root"
        )
    architecture, calls = _CALLS[machine]
    lines = [
        _instruction(_LOAD, 4),
        _instruction(_EQUAL, architecture, if_false=len(calls) + 1),
        _instruction(_LOAD, 0),
        *(
            _instruction(_EQUAL, number, if_true=len(calls) - index)
            for index, number in enumerate(calls)
        ),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _SUCCEED),
    ]
    return b"".join(lines)


def install() -> None:
    """Filter this thread and all it starts from now on. OSError if the kernel refuses."""
    code = filter_of(platform.machine())
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    for words in (
        (_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero),
        (_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program)),
    ):
        if libc.prctl(*words):
            number = ctypes.get_errno()
            raise OSError(number, f"seccomp filter: {os.strerror(number)}")


def main() -> None:
    """Install the filter and exec the program."""
    install()
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
