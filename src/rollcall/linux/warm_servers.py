"""Finds the warm servers of this user, by their sockets in a folder that only this user can open.

`rollcall run` waits for it, so it imports next to nothing, not even typing.
"""

import os

from rollcall.linux import private_folder, process_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

_ANSWER_S = 5.0  # for a server to answer; one that is stopped never does
SWITCH = "ROLLCALL_WARM"  # 0: no warm server is used; 1: a run without one leaves one behind
RUNS, CALLS = "warm-", "calls-"  # what the name of a socket begins with, by what its server is for


class WarmServers:
    """The sockets of this user's servers of one kind, while it is open."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __enter__(self) -> "WarmServers":
        self._fd = private_folder.opened(private_folder.path(os.environ))
        self.names = [] if self._fd is None else sorted(n for n in os.listdir(self._fd) if n.startswith(self._kind))
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def connected(self, name: str) -> "socket.socket | None":
        import socket

        assert self._fd is not None
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(_ANSWER_S)
        try:
            link.connect(private_folder.socket_path(self._fd, name))
        except ConnectionRefusedError:  # its server was killed
            os.unlink(name, dir_fd=self._fd)
        except OSError:
            pass
        else:
            if _is_ours(link):
                return link
        link.close()
        return None


def use_first(kind: str, use: "Callable[[socket.socket], tuple[Any, str]]") -> "tuple[Any, str]":
    """What `use` gets from the first server of that kind that fits, or None; and why no server fits, if there are any.
    `use` returns None and what differs, if a server does not fit, and closes the connection."""
    differences = []
    with WarmServers(kind) as servers:
        for name in servers.names:
            if (connection := servers.connected(name)) is not None:
                found, differs = use(connection)
                if found is not None:
                    return found, ""
                differences.append(differs)
    return None, why_cold(differences)


def ask_all(kind: str, question: "dict[str, Any]") -> "list[dict[str, Any]]":
    """The answers of all servers of that kind."""
    answers = []
    with WarmServers(kind) as servers:
        for name in servers.names:
            if (link := servers.connected(name)) is not None:
                with link:
                    answers.append(ask(link, question, []))
    return [answer for answer in answers if answer is not None]


def ask(link: "socket.socket", question: "dict[str, Any]", fds: list[int]) -> "dict[str, Any] | None":
    from rollcall.linux import fd_messages

    try:
        fd_messages.send(link, question, fds)
        return fd_messages.receive(link)[0]
    except (OSError, EOFError, ValueError):
        return None


def why_cold(differences: "list[str]") -> str:
    """What to say if no server fits. Nothing of those of other Pythons: they are ready for other programs."""
    differs = next((each for each in differences if each != process_state.ANOTHER_PYTHON), "")
    return (
        differs
        and f"started without the warm server, because of {differs} (`rollcall warm --status` shows what is ready)"
    )


def _is_ours(link: "socket.socket") -> bool:
    """Whether the server runs as this user: it is given our environment."""
    from rollcall.linux import fd_messages

    return fd_messages.peer_uid(link) == os.geteuid()
