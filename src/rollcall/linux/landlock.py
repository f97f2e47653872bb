"""Takes from this process, and from all that it starts, the right to change files outside of some folders (Landlock).

The kernel then refuses every write, whether of Python, a library in C or a shell. No privilege is needed. It cannot be
undone.
"""

import ctypes
import os
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls; the same on all processors
_ASK_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
# Rights to write, make, remove and move; the last two came with versions 2 and 3.
_WRITES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FILE_RIGHTS = (1 << 1) | _TRUNCATE  # those that a rule for a file, and not a folder, may name
_CONNECT_TCP = 1 << 1
_LEAST_VERSION = 2  # before, nothing can be moved from folder to folder, not even where writing is allowed
_TRUNCATE_VERSION, _NETWORK_VERSION = 3, 4


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """0 where the kernel has no Landlock."""
    return max(int(_libc().syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)), 0)


def write_only_in(folders: Iterable[str], may_connect: bool = True) -> bool:
    """From now on, files can be changed in these folders only, and, unless `may_connect`, no TCP connection is opened.
    Returns False if the kernel cannot do it."""
    known = version()
    if known < _LEAST_VERSION:
        return False
    rights = _WRITES | _REFER | (_TRUNCATE if known >= _TRUNCATE_VERSION else 0)
    ruleset = _Ruleset(rights, 0 if may_connect else _CONNECT_TCP)
    size = ctypes.sizeof(ruleset) if known >= _NETWORK_VERSION else ctypes.sizeof(ctypes.c_uint64)
    rules = _libc().syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    if rules < 0:
        return False
    try:
        for folder in folders:
            _allow(rules, folder, rights)
        _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(_libc().syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(rules: int, folder: str, rights: int) -> None:
    try:
        opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = _Beneath(rights if os.path.isdir(folder) else rights & _FILE_RIGHTS, opened)
        _libc().syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(opened)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
