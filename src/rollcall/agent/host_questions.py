"""Answers the launcher's questions about this host: its clocks, its GPUs, how other hosts are reached.

The supervisor answers them until the agent has imported torch, and the agent from then on.
"""

import os
import threading
import time
from typing import TYPE_CHECKING

from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import (
    CheckHost,
    ClosePort,
    CountGpus,
    Finish,
    GpusCounted,
    MeasureLink,
    Message,
    OpenPort,
    Ping,
    Pong,
    PortClosed,
    Prepare,
    ReachMaster,
    Refused,
    Stop,
    UnknownMessage,
)

if TYPE_CHECKING:
    from rollcall.agent.connectivity import TokenServer


class HostQuestions:
    """Holds the port that the master of an attempt reserves, until the ranks' store takes it."""

    def __init__(self, channel: Channel, listener_fds: list[int] | None = None) -> None:
        self._channel = channel
        self._token_server: TokenServer | None = None
        self._listener_fds = listener_fds or []

    def until_prepared(self) -> Prepare | None:
        """Answer until the launcher says what to run; None if it goes away, or needs nothing here."""
        while (message := self._channel.receive()) is not None:
            if isinstance(message, Prepare):
                return message
            if isinstance(message, Stop | Finish):
                return None
            self.answer(message)
        return None

    def answer(self, message: Message) -> None:
        if isinstance(message, Ping):
            self._channel.send(Pong(message.sent_ns, time.time_ns(), time.monotonic_ns()))
            return
        # Here: a host says who it is before it imports what the other answers need.
        from rollcall.agent import connectivity, host_check
        from rollcall.protocol.devices import gpu_count

        match message:
            case OpenPort(attempt, port, token):
                self._release_ports()
                self._token_server = connectivity.open_port(self._channel, attempt, port, token)
            case ClosePort():
                self._keep_listener()
                self._channel.send(PortClosed())
            case ReachMaster(attempt, addresses, port, token):
                self._channel.send(connectivity.reach_master(attempt, addresses, port, token))
            case MeasureLink(addresses, port, token):
                self._channel.send(connectivity.measure(addresses, port, token))
            case CheckHost(folder):
                # In a thread of its own: heartbeats must be answered at the same time.
                threading.Thread(target=host_check.report, args=(self._channel, folder), daemon=True).start()
            case CountGpus():
                self._channel.send(GpusCounted(gpu_count()))
            case UnknownMessage():
                self._channel.send(Refused(f"the launcher {message.problem}", 1))

    def take_listeners(self) -> list[int]:
        """The file of the port that was reserved last, if one was: it is the caller's from now on."""
        if self._token_server is not None:
            self._keep_listener()
        fds, self._listener_fds = self._listener_fds, []
        return fds

    def _keep_listener(self) -> None:
        """Stop answering with the token; keep the port."""
        if self._token_server is not None:
            self._listener_fds = [self._token_server.close().detach()]
            self._token_server = None

    def _release_ports(self) -> None:
        """Those of an attempt that never began."""
        for fd in self.take_listeners():
            os.close(fd)
