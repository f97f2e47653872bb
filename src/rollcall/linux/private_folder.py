"""A folder for sockets that only this user can open."""

import contextlib
import os
import stat

TYPE_CHECKING = False  # this file imports almost nothing: `rollcall run` waits for it
if TYPE_CHECKING:
    from collections.abc import Mapping

_MODE = 0o700


def path(environ: "Mapping[str, str]") -> str:
    """Returns a folder in $XDG_RUNTIME_DIR, which belongs to this user's session; without one, in /tmp under the
    user's number."""
    home = environ.get("XDG_RUNTIME_DIR", "")
    return os.path.join(home, "rollcall") if home.startswith("/") else f"/tmp/rollcall-{os.geteuid()}"


def opened(folder: str, make: bool = False) -> int | None:
    """A descriptor of it; None if it is not there, or not this user's alone. Whoever holds the descriptor reaches what
    is inside through /proc/self/fd, even if somebody puts another folder in its place."""
    if make:
        with contextlib.suppress(OSError):  # it is there, or cannot be made
            os.mkdir(folder, _MODE)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if is_private(os.fstat(fd)):
        return fd
    os.close(fd)
    return None


def needed(folder: str) -> str:
    """What to say if `opened` gives None."""
    return f"{folder} must be a folder that only this user can open (chmod 700): remove it, and try again"


def is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0


def socket_path(fd: int, name: str) -> str:
    """Short, whatever the folder is named: the address of a socket has at most 107 bytes."""
    return f"/proc/self/fd/{fd}/{name}"
