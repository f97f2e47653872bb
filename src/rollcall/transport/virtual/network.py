"""A network for virtual hosts: a switch, and a link from it to each host.

The switch and each host are network namespaces; a host also has a UTS namespace, for its hostname. A separate process,
`main` below, makes them, since the launcher must not leave the machine's namespaces: it enters one new namespace after
the other, and returns an open file of each. The network exists as long as these files are open. So there is no name to
clean up and no process to end: when the launcher closes the files, or is killed, the kernel removes the network.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rollcall.transport.virtual import traffic_shaping

_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
# As transport/local.py starts the agent: nothing that lies in this folder may take the place of a module.
_MAIN = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); from rollcall.transport.virtual.network import main; main()"
)


class NoNetworkError(Exception):
    """Namespaces or links cannot be made here; the message says why."""


@dataclass(frozen=True)
class NetworkSpec:
    """What to make, and the tools for it."""

    count: int
    link: str | None
    delay: str | None
    ip: str
    tc: str | None


@dataclass(frozen=True)
class Network:
    """Open files of the namespaces: a network exists until `close`. `refused`: why layers are missing, by kind."""

    user_fd: int
    switch_fd: int
    host_fds: tuple[tuple[int, int], ...]  # of each: net, uts
    refused: dict[str, str]

    def fds(self) -> list[int]:
        return [self.user_fd, self.switch_fd, *(fd for fds in self.host_fds for fd in fds)]

    def close(self) -> None:
        for fd in self.fds():
            os.close(fd)


def name_of(number: int) -> str:
    return f"host-{number}"


def address_of(number: int) -> str:
    return f"10.53.0.{number}"


def make(spec: NetworkSpec, inside: Sequence[str] = ()) -> Network:
    """A network. `inside`: words before a command that give it the right to make one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        maker = subprocess.run(
            [*inside, sys.executable, "-c", _MAIN, str(theirs.fileno())],
            input=json.dumps(asdict(spec)),
            capture_output=True,
            text=True,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is for the launcher; this ends by itself
            check=False,
        )
        if maker.returncode:
            raise NoNetworkError((maker.stderr.splitlines() or [f"exit code {maker.returncode}"])[-1])
        most = 2 + 2 * spec.count
        answer, fds, _, _ = socket.recv_fds(ours, 1 << 16, most, socket.MSG_CMSG_CLOEXEC)
    return Network(fds[0], fds[1], tuple(zip(fds[2::2], fds[3::2], strict=True)), json.loads(answer))


def main() -> None:
    """The other side: makes what the spec on stdin says, and sends it over the socket that it was started with."""
    spec = NetworkSpec(**json.load(sys.stdin))
    try:
        network = _make(spec)
    except OSError as error:
        sys.exit(str(error))
    with socket.socket(fileno=int(sys.argv[1])) as answer:
        socket.send_fds(answer, [json.dumps(network.refused).encode()], network.fds())


def _make(spec: NetworkSpec) -> Network:
    (switch_fd,) = _move_to_new(net=_CLONE_NEWNET)
    layers, refused = _try_out(spec)
    hosts = tuple(_make_host(spec, number, switch_fd, layers) for number in range(1, spec.count + 1))
    _check(_libc().setns(switch_fd, _CLONE_NEWNET))
    _make_switch(spec, layers)
    return Network(os.open("/proc/self/ns/user", os.O_RDONLY), switch_fd, hosts, refused)


def _make_host(
    spec: NetworkSpec, number: int, switch_fd: int, layers: tuple[traffic_shaping.Layer, ...]
) -> tuple[int, int]:
    net_fd, uts_fd = _move_to_new(net=_CLONE_NEWNET, uts=_CLONE_NEWUTS)
    socket.sethostname(name_of(number))
    _batch(
        spec.ip,
        "link set lo up\n"
        f"link add eth0 type veth peer name port{number} netns /proc/{os.getpid()}/fd/{switch_fd}\n"
        f"addr add {address_of(number)}/16 dev eth0\n"
        "link set eth0 up\n",
    )
    if spec.tc and layers:
        _batch(spec.tc, traffic_shaping.stacked("eth0", layers))
    return net_fd, uts_fd


def _make_switch(spec: NetworkSpec, layers: tuple[traffic_shaping.Layer, ...]) -> None:
    ports = [f"port{number}" for number in range(1, spec.count + 1)]
    # First up, then plugged in: a port that is up already forwards at once, others a moment later.
    plugs = (f"link set {port} up\nlink set {port} master switch\n" for port in ports)
    _batch(spec.ip, "link add switch type bridge forward_delay 0\nlink set switch up\n" + "".join(plugs))
    outer = tuple(layer for layer in layers if layer.both_ends)
    if spec.tc and outer:
        _batch(spec.tc, "".join(traffic_shaping.stacked(port, outer) for port in ports))


def _try_out(spec: NetworkSpec) -> tuple[tuple[traffic_shaping.Layer, ...], dict[str, str]]:
    """The layers that this kernel has, and what was said about the others. Tried on the switch's own loopback."""
    usable, refused = [], {}
    for layer in traffic_shaping.layers(spec.link, spec.delay):
        try:
            if spec.tc is None:
                raise OSError("tc is not installed (package iproute2)")
            _batch(spec.tc, traffic_shaping.stacked("lo", (layer,)) + "qdisc del dev lo root\n")
            usable.append(layer)
        except OSError as error:
            refused[layer.kind] = str(error)
    return tuple(usable), refused


def _move_to_new(**kinds: int) -> list[int]:
    """Go into new namespaces, leaving the old ones; open files of the new."""
    _check(_libc().unshare(sum(kinds.values())))
    return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(f"new namespaces: {os.strerror(ctypes.get_errno())}")


def _batch(tool: str, lines: str) -> None:
    """Run `ip` or `tc` once for many lines: a process per line would take most of the time."""
    done = subprocess.run([tool, "-batch", "-"], input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        raise OSError(f"{os.path.basename(tool)}: {said[0].removeprefix('Error: ')}")
