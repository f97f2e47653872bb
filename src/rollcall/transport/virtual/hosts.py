"""Virtual hosts: each with its own network, address and hostname, all on this machine.

To run a command on a host, words are put before it (`nsenter …`). nsenter becomes the command: same pid, folder,
environment, open files and user. root needs nothing else. Other users may make a network in a user namespace, in which
they keep their own uid. If neither is possible, the hosts are addresses of the loopback device, and a message says so.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rollcall.errors import UsageError, say
from rollcall.transport.virtual import traffic_shaping
from rollcall.transport.virtual.network import Network, NetworkSpec, NoNetworkError, address_of, make, name_of

MOST_HOSTS = 64
# Where `ip` and `tc` are on systems that keep these folders out of a user's PATH.
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
_PACKAGES = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
# Capabilities are kept for `ip`, until the network is there: a command that enters a host has none of them.
_OWN_USER = ("--user", "--map-current-user", "--keep-caps", "--")


@dataclass(frozen=True)
class VirtualHost:
    name: str  # what the host calls itself; on loopback addresses only, what we call it
    address: str
    enter: tuple[str, ...]  # put before a command, they run it on this host


@contextmanager
def hosts(
    count: int,
    link: str | None = None,
    delay: str | None = None,
    tell: Callable[[str], None] = say,
    path: str | None = None,
) -> Iterator[tuple[VirtualHost, ...]]:
    """So many hosts, for as long as the block lasts.

    Every host sends and receives at the rate `link`, and every packet takes `delay` from one host to another.
    `path`: the folders with the tools (ip, tc, nsenter, unshare), if not those of PATH.
    """
    names(count)  # refuses too many
    layers = traffic_shaping.layers(link, delay)
    try:
        network, found = _in_namespaces(count, link, delay, _find_tools(path))
    except NoNetworkError as reason:
        network, found = None, _on_loopback(count)
        tell(_loopback_only(found, layers, reason))
    try:
        for layer in layers:
            if network and layer.kind in network.refused:
                tell(traffic_shaping.why_not(layer, network.refused[layer.kind]))
        yield found
    finally:
        if network:
            network.close()


def names(count: int) -> tuple[str, ...]:
    """The names of this number of hosts."""
    if not 1 <= count <= MOST_HOSTS:
        raise UsageError(f"--virtual-hosts {count} is not possible: use a number from 1 to {MOST_HOSTS}")
    return tuple(map(name_of, range(1, count + 1)))


def _find_tools(path: str | None) -> dict[str, str]:
    if path is None:
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), _SBIN))
    tools = {tool: where for tool in (*_PACKAGES, "tc") if (where := shutil.which(tool, path=path))}
    for tool, package in _PACKAGES.items():
        if tool not in tools:
            raise NoNetworkError(f"{tool} is not installed (package {package})")
    return tools


def _in_namespaces(
    count: int, link: str | None, delay: str | None, tools: dict[str, str]
) -> tuple[Network, tuple[VirtualHost, ...]]:
    spec = NetworkSpec(count, link, delay, tools["ip"], tools.get("tc"))
    network, own_user = _make(spec, tools["unshare"])
    found = tuple(
        VirtualHost(name_of(number), address_of(number), _enter(tools["nsenter"], network, fds, own_user))
        for number, fds in enumerate(network.host_fds, 1)
    )
    tried = subprocess.run([*found[0].enter, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        network.close()
        raise NoNetworkError(tried.stderr.strip())
    return network, found


def _make(spec: NetworkSpec, unshare: str) -> tuple[Network, bool]:
    """A network, and whether it lies in a user namespace of its own."""
    is_root = os.geteuid() == 0
    if is_root:
        with suppress(NoNetworkError):  # a container's root may not be allowed to: then it is a user like others
            return make(spec), False
    try:
        return make(spec, (unshare, *_OWN_USER)), True
    except NoNetworkError as error:
        remedy = "give this container CAP_SYS_ADMIN" if is_root else "allow them, or be root"
        raise NoNetworkError(f"user namespaces do not work here ({error}): {remedy}") from error


def _enter(nsenter: str, network: Network, host_fds: tuple[int, int], own_user: bool) -> tuple[str, ...]:
    # Paths to our own open files: no process has to inherit them, and any other process may end.
    files = f"/proc/{os.getpid()}/fd"
    net_fd, uts_fd = host_fds
    # Without the second word, nsenter becomes uid 0, whom this user namespace does not know.
    user = (f"--user={files}/{network.user_fd}", "--preserve-credentials") if own_user else ()
    return (nsenter, *user, f"--net={files}/{net_fd}", f"--uts={files}/{uts_fd}", "--")


def _on_loopback(count: int) -> tuple[VirtualHost, ...]:
    return tuple(VirtualHost(name_of(number), f"127.0.0.{number + 1}", ()) for number in range(1, count + 1))


def _loopback_only(found: tuple[VirtualHost, ...], layers: tuple[traffic_shaping.Layer, ...], reason: object) -> str:
    addresses = " to ".join(dict.fromkeys((found[0].address, found[-1].address)))
    lost = f", and without {' '.join(layer.option for layer in layers)}" if layers else ""
    return f"virtual hosts are only loopback addresses ({addresses}), without hostnames of their own{lost}: {reason}"
