"""What a process hands down to its children: environment, limits, rights, signals, control groups and more.

Two processes with the same state start the same child. Imports next to nothing: `rollcall run` waits for it.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Lines of /proc/self/status that a child inherits, and what they are about.
_STATUS = {
    "Umask": "the umask", "Uid": "the user", "Gid": "the group", "Groups": "the groups",
    "SigBlk": "the blocked signals", "SigIgn": "the ignored signals", "Cpus_allowed": "the allowed cores",
    "Mems_allowed": "the allowed memory nodes", "NoNewPrivs": "no_new_privs", "Seccomp": "seccomp",
    "Seccomp_filters": "seccomp", "Speculation_Store_Bypass": "speculation control",
    "SpeculationIndirectBranch": "speculation control", "THP_enabled": "transparent huge pages",
    "CapInh": "the capabilities", "CapPrm": "the capabilities", "CapEff": "the capabilities",
    "CapBnd": "the capabilities", "CapAmb": "the capabilities",
}  # fmt: skip
# Files of /proc/self that say it themselves.
_FILES = {
    "limits": "the resource limits", "cgroup": "the control group", "oom_score_adj": "oom_score_adj",
    "personality": "the personality", "timerslack_ns": "the timer slack", "coredump_filter": "coredump_filter",
    "loginuid": "the login user", "attr/current": "the security label",
}  # fmt: skip
_LINKS = ("root", "ns/cgroup", "ns/ipc", "ns/mnt", "ns/net", "ns/pid", "ns/time", "ns/user", "ns/uts")
_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}  # numbers of the system call
# Variables that Python and the loader of libraries read at the start of a process, from its folder on.
_PATHS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD")
_OF_LIBC = 0b11 << (32 - 1)  # signals 32 and 33
_CLASS_BITS, _BEST_EFFORT = 13, 2
# Variables that say where a terminal is, or what was typed last. No library is known to read them when it is imported,
# and they may differ between two commands of one shell.
VOLATILE = frozenset((
    "_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "WINDOWID", "TERM_SESSION_ID", "SSH_CLIENT", "SSH_CONNECTION",
    "SSH_TTY", "TMUX", "TMUX_PANE", "STY", "WINDOW", "ROLLCALL_WARM",
))  # fmt: skip


ANOTHER_PYTHON = "the Python"


def current() -> "dict[str, Any]":
    """The state of this process: `environ` and `cwd`, and the rest by what it is about."""
    return {"environ": dict(os.environ), "cwd": os.getcwd(), **_rest()}


def difference(one: "dict[str, Any]", other: "dict[str, Any]") -> str:
    """What differs first, in words; empty if nothing does that an import could see or that a child could not be given
    later. The folder and VOLATILE variables can be given later."""
    if one.get(ANOTHER_PYTHON) != other.get(ANOTHER_PYTHON):  # before PATH, which activating its environment changes
        return ANOTHER_PYTHON
    ours, theirs = one["environ"], other["environ"]
    for name in sorted({*ours, *theirs} - VOLATILE):
        if ours.get(name) != theirs.get(name):
            return f"the variable {name}"
    for name in sorted({*one, *other} - {"environ", "cwd"}):
        if one.get(name) != other.get(name):
            return name
    relative = next((name for name in _PATHS if _is_relative(ours.get(name, "/"))), "")
    return f"the folder, to which {relative} is relative" if relative and one["cwd"] != other["cwd"] else ""


def _is_relative(paths: str) -> bool:
    """An empty part stands for the folder itself."""
    return any(not part.startswith("/") for part in paths.split(":"))


def _rest() -> "dict[str, Any]":
    found: dict[str, Any] = {ANOTHER_PYTHON: [sys.executable, sys.version], "the name of the host": list(os.uname())}
    for line in _read("status").splitlines():
        name, _, value = line.partition(":")
        if name in _STATUS:
            value = value.strip()
            found.setdefault(_STATUS[name], []).append(_users_signals(value) if name.startswith("Sig") else value)
    for name, words in _FILES.items():
        found[words] = _read(name)
    for name in _LINKS:
        found[f"/proc/self/{name}"] = _link(name)
    niceness, policy = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    found["the scheduling"] = [niceness, policy, os.sched_getparam(0).sched_priority, _io_priority()]
    found["the memory policy"] = _read("numa_maps", 4096).split()[1:2]
    return found


def _users_signals(mask: str) -> str:
    """Leaves out the two that the C library keeps for itself: it ignores them in some ways to start a child."""
    return f"{int(mask, 16) & ~_OF_LIBC:x}"


def _read(name: str, most: int = 1 << 16) -> str:
    try:
        fd = os.open(f"/proc/self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # this kernel does not have it
        return ""
    try:
        return os.read(fd, most).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/{name}")
    except OSError:
        return ""


def _io_priority() -> int:
    """0: none was set. The kernel then says either that, or the one that follows from the nice value."""
    import ctypes  # here: what only compares two states does not need it

    number = _IOPRIO_GET.get(os.uname().machine)
    # As long: the C library reads 64 bits, of which ctypes would set the lower 32 only.
    words = [] if number is None else [ctypes.c_long(word) for word in (number, 1, 0)]
    found = int(ctypes.CDLL(None).syscall(*words)) if words else -1
    by_nice = (_BEST_EFFORT << _CLASS_BITS) + (os.getpriority(os.PRIO_PROCESS, 0) + 20) // 5
    return 0 if found >> _CLASS_BITS == 0 or found == by_nice else found
