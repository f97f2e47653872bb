"""The first process on a host among several: it answers the roll call, then stays beside the agent.

    launcher ── ssh, srun, … ── keeper ── agent ── fork server ── ranks

The agent is forked at once and imports torch. Meanwhile the keeper, which never does, answers the
launcher: who this host is, how it reaches the master. With the Order the line passes on to the agent.
From then on the keeper is what the launcher is on a single host: when the agent ends, however it ends,
or when the line breaks, it ends whatever is left here.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time
from typing import NoReturn

from rollcall.agent.host_info import present
from rollcall.compat.torch_dns import impatient_env
from rollcall.linux import prctl
from rollcall.protocol.exit_codes import shell_code
from rollcall.protocol.messages import (
    AgentEnded,
    Dismiss,
    Measure,
    Message,
    Open,
    Order,
    Ping,
    Pong,
    Probe,
    Probed,
    Stop,
    Try,
    Wire,
    take_stdio,
)

GREETING = "rollcall> "  # before a line of the way up: a login shell may say other things first
AGENT_SPEAKS = f"{GREETING}agent"
_ORPHANED_S = 3.0  # for the agent to end its ranks once the line is cut; then we do
_LOOK_S = 0.5
_LOST_LINE = 1
_SETTINGS_TAKEN = "ROLLCALL_SETTINGS_TAKEN"


def main(purpose: str) -> NoReturn:
    """`run` prepares an agent; `check` only answers."""
    if not _called_back():
        _take_settings()
    os.environ.update(impatient_env())
    prctl.become_subreaper()
    prctl.ignore_stop_signals()
    wire_in, wire_out = take_stdio()
    agent, link = _fork_agent(wire_in, wire_out) if purpose == "run" else (None, None)
    os.write(wire_out, f"\n{AGENT_SPEAKS}\n".encode())
    # Unbuffered: what comes behind the Order is for the agent to read.
    wire = Wire.on(wire_in, wire_out, buffered=False)
    order = _answer(wire)
    if order is None or agent is None or link is None:
        _end(0 if agent is None else _LOST_LINE)
    _hand_over(link, *order)
    code = _stay(agent, wire_in)
    if code < 0:  # it was killed: nobody else can tell
        with contextlib.suppress(OSError):
            wire.send(AgentEnded(code))
    _end(shell_code(code))


def _called_back() -> bool:
    """Started by a scheduler, we have no line to the launcher yet: make one, in place of stdin and stdout."""
    if "ROLLCALL_CALL" not in os.environ:
        return False
    from rollcall.transport import connect_back

    try:
        line = connect_back.call(os.environ)
    except OSError as error:
        sys.exit(f"{socket.gethostname()}: {error}")
    os.dup2(line, 0)
    os.dup2(line, 1)
    os.close(line)
    return True


def _take_settings() -> None:
    """The first line is for the environment. A command line would show it to everyone, and a token is a token."""
    if os.environ.pop(_SETTINGS_TAKEN, None):
        return
    with open(0, "rb", buffering=0, closefd=False) as first:
        settings = json.loads(first.readline() or b"{}")
    os.environ.update(settings)
    if any(name.startswith(("LD_", "PYTHON")) for name in settings):
        os.environ[_SETTINGS_TAKEN] = "1"  # these count from the first moment of a process only
        os.execv(sys.executable, sys.orig_argv)


def _fork_agent(wire_in: int, wire_out: int) -> tuple[int, socket.socket]:
    here, there = socket.socketpair()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        here.close()
        from rollcall.agent import main as agent

        agent.follow(there, wire_in, wire_out, keeper)
    there.close()
    return pid, here


def _answer(wire: Wire) -> tuple[Order, list[socket.socket]] | None:
    """Answer the launcher until it gives the Order; None if it goes away."""
    message: Message | None
    with contextlib.suppress(OSError):  # the line broke
        wire.send(present())
        from rollcall.agent import connectivity  # only now: being here comes first

        doors: list[connectivity.Door] = []
        while (message := wire.receive()) is not None:
            match message:
                case Ping(sent_ns):
                    wire.send(Pong(sent_ns, time.time_ns(), time.monotonic_ns()))
                case Open(attempt, port, token):
                    while doors:
                        doors.pop().close().close()
                    doors += connectivity.open_door(wire, attempt, port, token)
                case Try(attempt, addresses, port, token):
                    wire.send(connectivity.try_all(attempt, addresses, port, token))
                case Measure(addresses, port, token):
                    wire.send(connectivity.measure(addresses, port, token))
                case Probe():
                    wire.send(Probed(_gpus_of_torch()))
                case Order():
                    return message, [door.close() for door in doors]
                case Stop() | Dismiss():
                    return None
    return None


def _gpus_of_torch() -> int:
    from rollcall.protocol.devices import gpu_count

    return gpu_count()


def _hand_over(link: socket.socket, order: Order, listeners: list[socket.socket]) -> None:
    """Give the agent its order, and the port that the ranks will meet at."""
    from dataclasses import asdict

    data = json.dumps(asdict(order)).encode()
    socket.send_fds(link, [len(data).to_bytes(8, "big")], [listener.fileno() for listener in listeners])
    with contextlib.suppress(OSError):  # it died already; _stay will see
        link.sendall(data)
    for listener in listeners:
        listener.close()


def receive_order(link: socket.socket) -> tuple[Order, list[int]] | None:
    """The agent's side of the handing over."""
    head, fds, _, _ = socket.recv_fds(link, 8, 4)
    if len(head) < 8:
        return None
    size, data = int.from_bytes(head, "big"), b""
    while len(data) < size:
        if not (chunk := link.recv(size - len(data))):
            return None
        data += chunk
    return Order(**json.loads(data)), list(fds)


def _stay(agent: int, wire_in: int) -> int:
    """Until the agent has ended: its exit code. When the line breaks it has a moment to do so by itself."""
    poll = select.poll()
    pidfd = os.pidfd_open(agent)
    poll.register(pidfd, select.POLLIN)
    poll.register(wire_in, select.POLLRDHUP)  # and POLLHUP, which need not be asked for
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        ready = dict(poll.poll(_LOOK_S * 1000))
        if pidfd in ready:
            _, status = os.waitpid(agent, 0)
            return os.waitstatus_to_exitcode(status)
        if wire_in in ready and deadline is None:
            deadline = time.monotonic() + _ORPHANED_S
            poll.unregister(wire_in)
    return _LOST_LINE


def _end(code: int) -> NoReturn:
    from rollcall.linux import process_tree

    process_tree.end_all(0)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
