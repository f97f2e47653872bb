"""The bridge on the machine, and the hosts on it."""

import socket
import time
from typing import Generic, TypeVar

import psutil

from .claim import Claim, claim
from .host import LOCAL_RULE, Host, empty
from .programs import call

BRIDGE = 254  # the machine's own last byte

AnyHost = TypeVar("AnyHost", bound=Host)


class Network(Generic[AnyHost]):
    """`with Network(Host) as network:` has hosts h1 to h4; the machine itself is on the bridge."""

    def __init__(self, kind: type[AnyHost], n_hosts: int = 4) -> None:
        self.claim: Claim = claim()
        try:
            self.folder = self.claim.folder
            self.address = self.claim.address(BRIDGE)
            self.private = self.claim.private
            self.small_disk = self.claim.small_disk
            self._lay_out(n_hosts)
            self.hosts: list[AnyHost] = [kind(self.claim, n) for n in range(1, n_hosts + 1)]
            for host in self.hosts:
                host.wait_until_made()
            self._connect()
        except BaseException:
            self.stop()
            raise

    def _lay_out(self, n_hosts: int) -> None:
        for folder in (self.folder, self.private, self.small_disk):
            folder.mkdir()
        call("mount", "-t", "tmpfs", "-o", "size=1m", "small", self.small_disk)
        names = [f"{self.claim.address(n)} h{n}" for n in range(1, n_hosts + 1)]
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{self.address} {socket.gethostname()}", *names]
        (self.folder / "hosts").write_text("".join(f"{line}\n" for line in lines))

    def _connect(self) -> None:
        call("ip", "-batch", "-", stdin=self._machine_commands())
        for host in self.hosts:
            call(*host.enter, "ip", "-batch", "-", stdin=self._host_commands(host))

    def _machine_commands(self) -> str:
        bridge = self.claim.bridge
        lines = [
            f"link add {bridge} address {self._mac(BRIDGE)} type bridge",
            f"address add {self.address}/24 dev {bridge}",
            f"link set {bridge} up",
        ]
        for host in self.hosts:
            peer = f"eth0 address {self._mac(host.n)} netns {host.holder.pid}"
            lines += [
                f"link add {host.link} type veth peer name {peer}",
                f"link set {host.link} master {bridge} up",
                f"neighbour add {host.address} lladdr {self._mac(host.n)} dev {bridge} nud permanent",
            ]
        return "\n".join(lines)

    def _host_commands(self, host: Host) -> str:
        lines = [
            f"address add {host.address}/24 dev eth0",
            "link set eth0 up",
            f"rule add pref {LOCAL_RULE} lookup local",
            "rule delete pref 0",
        ]
        # ARP that fails turns silence into "no route to host" after 3 s: nobody here has to ask.
        for n in [*(other.n for other in self.hosts if other is not host), BRIDGE]:
            lines.append(f"neighbour add {self.claim.address(n)} lladdr {self._mac(n)} dev eth0 nud permanent")
        return "\n".join(lines)

    def _mac(self, n: int) -> str:
        return f"02:77:00:00:{self.claim.number:02x}:{n:02x}"

    def __getitem__(self, name: str) -> AnyHost:
        return next(host for host in self.hosts if host.name == name)

    def wait_until_idle(self, timeout_s: float) -> list[psutil.Process]:
        """What is left on any host after so long."""
        deadline = time.monotonic() + timeout_s
        return [left for host in self.hosts for left in host.wait_until_idle(deadline - time.monotonic())]

    def restore(self) -> None:
        """As it was before any test; processes are left alone."""
        for host in self.hosts:
            host.restore()
        empty(self.small_disk)

    def stop(self) -> None:
        self.claim.release()
        for host in getattr(self, "hosts", []):
            host.holder.stop()

    def __enter__(self) -> "Network[AnyHost]":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
