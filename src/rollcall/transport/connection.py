"""What every transport gives the launcher: a connection to each agent that it has started."""

import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from rollcall.linux.child_process import ChildProcess
from rollcall.protocol.hosts import Host


@dataclass(frozen=True)
class Connection:
    """The streams to and from one agent. `process`, where there is one, is our end of the connection."""

    reader: IO[bytes]
    writer: IO[bytes]
    process: "subprocess.Popen[bytes] | ChildProcess | None" = None
    greets: bool = True  # prints how far it has come before it speaks in messages
    needs_heartbeat: bool = True  # a cut network is noticed by silence alone
    stdin_fd: int | None = None  # the launcher's standard input, as the agent knows it
    errors: tuple[str, ...] = ()  # what was printed about the agent before there was a connection
    hang_up: Callable[[], None] | None = None
    errors_read: threading.Event = field(default_factory=threading.Event)  # set when all of stderr is read


# Starts agents on hosts. Calls back with each connection as soon as it is there, from this thread or another.
StartAgents = Callable[[list[Host], Callable[[Host, Connection], None]], None]
