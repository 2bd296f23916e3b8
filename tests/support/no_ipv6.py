"""A process whose kernel has no IPv6, as with `ipv6.disable=1`: socket(AF_INET6) fails, in it and its children."""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct

_SECCOMP, _NO_NEW_PRIVILEGES, _FILTER = 22, 38, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _FIRST_ARGUMENT = 0, 16
"""Offsets in struct seccomp_data."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def without_ipv6() -> None:
    """From now on, for this process. NotImplementedError where the kernel or the machine cannot."""
    call = _SOCKET_CALL.get(platform.machine())
    if call is None:
        raise NotImplementedError(f"the number of socket() on {platform.machine()} is not known")
    rules = (
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 0, 3, call),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IF_EQUAL, 0, 1, socket.AF_INET6),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(rules), code)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        raise NotImplementedError(f"seccomp: {errno.errorcode[ctypes.get_errno()]}")
