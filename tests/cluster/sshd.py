"""A cluster: a network where every host answers ssh, to a key made for it."""

import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from .claim import Claim
from .host import Host
from .network import Network
from .programs import Daemon, call, find

if TYPE_CHECKING:
    from .slurm import Slurm

# One key exchange, the cheap one: the default costs 0.1 s more on every call.
SSHD_CONFIG = """\
ListenAddress {address}
HostKey {folder}/{name}.key
AuthorizedKeysFile {folder}/{name}.authorized
PidFile none
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org
PrintMotd no
PrintLastLog no
MaxStartups 1000
MaxSessions 1000
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""

SSH_CONFIG = """\
Host {name} {address}
    HostName {address}
    User root

"""

SSH_CONFIG_FOR_ALL = """\
Host *
    IdentityFile {folder}/client
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    LogLevel ERROR
"""


class SshHost(Host):
    """A host with an sshd that a test can stop, or have refuse our key."""

    def __init__(self, claim: Claim, n: int) -> None:
        super().__init__(claim, n)
        self._sshd: Daemon | None = None

    def start_sshd(self) -> None:
        self._launch_sshd()
        self._wait_for_sshd()

    def stop_sshd(self) -> None:
        """Refuse new connections; those that are open go on."""
        if self._sshd is not None:
            self._sshd.stop()
            self._sshd = None

    def lock(self) -> None:
        """Answer "Permission denied (publickey)"."""
        self._authorized.write_text("")

    def unlock(self) -> None:
        self._authorized.write_text((self._ssh / "client.pub").read_text())

    def restore(self) -> None:
        super().restore()
        self.unlock()
        if self._sshd is None:
            self.start_sshd()

    @property
    def _ssh(self) -> Path:
        return self.claim.folder / "ssh"

    @property
    def _authorized(self) -> Path:
        return self._ssh / f"{self.name}.authorized"

    def _launch_sshd(self) -> None:
        config = self._ssh / f"{self.name}.config"
        config.write_text(SSHD_CONFIG.format(address=self.address, folder=self._ssh, name=self.name))
        self._sshd = Daemon([*self.enter, find("sshd"), "-D", "-e", "-f", str(config)], self._ssh / f"{self.name}.log")

    def _wait_for_sshd(self) -> None:
        assert self._sshd is not None
        self._sshd.wait_until(lambda: accepts(self.address, 22))


class Cluster(Network[SshHost]):
    """Hosts that answer `ssh -F cluster.ssh_config h1`."""

    slurm: "Slurm | None" = None  # while there is one

    def __init__(self, n_hosts: int = 4) -> None:
        super().__init__(SshHost, n_hosts)
        try:
            self._ssh = self.folder / "ssh"
            self._make_keys()
            self.ssh_config = self._write_config()
            for host in self.hosts:
                host.unlock()
                host._launch_sshd()
            for host in self.hosts:
                host._wait_for_sshd()
        except BaseException:
            self.stop()
            raise

    @property
    def env(self) -> dict[str, str]:
        """For the environment of rollcall."""
        return {"ROLLCALL_SSH": shlex.join(self.ssh)}

    @property
    def ssh(self) -> list[str]:
        return [find("ssh"), "-F", str(self.ssh_config)]

    def _make_keys(self) -> None:
        self._ssh.mkdir()
        for path in [self._ssh / "client", *(self._ssh / f"{host.name}.key" for host in self.hosts)]:
            call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.stem, "-f", path)

    def _write_config(self) -> Path:
        known = [
            f"{host.name},{host.address} {(self._ssh / f'{host.name}.key.pub').read_text()}" for host in self.hosts
        ]
        (self._ssh / "known_hosts").write_text("".join(known))
        entries = [SSH_CONFIG.format(name=host.name, address=host.address) for host in self.hosts]
        config = self._ssh / "config"
        config.write_text("".join(entries) + SSH_CONFIG_FOR_ALL.format(folder=self._ssh))
        return config

    def stop(self) -> None:
        super().stop()
        for host in getattr(self, "hosts", []):
            host.stop_sshd()

    def __enter__(self) -> "Cluster":
        return self


def accepts(address: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
