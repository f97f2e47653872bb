"""A host: a process that holds a network, a hostname, mounts and a clock of its own."""

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from .claim import Claim
from .programs import Daemon, call, find

# Programs of the host itself, not of those who use it.
SYSTEM = {"sshd", "slurmd", "slurmstepd", "munged"}

# Each host has its own /run (sshd wants a folder there) and /dev/shm, as hosts have. /tmp stays shared: it is
# where tests keep what a cluster would keep on NFS. bash reads ~/.bashrc for every command over ssh: a developer's
# own is slow, starts processes and takes locks (pyenv), so that hosts have empty ones.
SETUP = """set -e
name=$1 folder=$2 home=$3
hostname "$name"
ip link set lo up
mount -t tmpfs run /run && mkdir /run/sshd
mount -t tmpfs shm /dev/shm
mount -t tmpfs private "$folder/private"
mount -t tmpfs -o size=1m small "$folder/small-disk"
mount --bind "$folder/hosts" /etc/hosts
for file in .bashrc .bash_profile .bash_login .profile; do
    if [ -e "$home/$file" ]; then mount --bind /dev/null "$home/$file"; fi
done
touch "$folder/$name.ready"
exec sleep infinity
"""

PORT_RULES = 10  # priority of the rules that block ports; before LOCAL_RULE, or they would never be asked
LOCAL_RULE = 100


class Host:
    """A host by its number on the network, from 1."""

    def __init__(self, claim: Claim, n: int) -> None:
        self.claim = claim
        self.n = n
        self.name = f"h{n}"
        self.address = claim.address(n)
        self.link = claim.link(n)
        self.private = claim.private
        """A disk that is not shared: this path is another empty folder on each host."""
        self.small_disk = claim.small_disk
        """A disk of 1 MB on each host, and on the machine itself."""
        self.holder = self._hold()
        self._overlays: list[Path] = []
        self._blocked = 0

    def _hold(self) -> Daemon:
        # No two hosts have booted at the same moment, so their monotonic clocks differ.
        clock = ["--time", "--monotonic", str(self.n * 1000), "--boottime", str(self.n * 1000)]
        words = [find("unshare"), "--net", "--uts", "--mount", *clock, "sh", "-c", SETUP, "holder"]
        values = [self.name, str(self.claim.folder), os.path.expanduser("~root")]
        return Daemon([*words, *values], self.claim.folder / f"{self.name}.log")

    def wait_until_made(self) -> None:
        self.holder.wait_until((self.claim.folder / f"{self.name}.ready").exists)
        self._net = self._net_of(self.holder.pid)

    @property
    def enter(self) -> list[str]:
        """Put these words before a command to run it here, as the same process, in the same folder."""
        # nsenter alone would start in /: entering a mount namespace forgets the working folder.
        # The holder made the clock for its children, and is itself not one of them.
        time = f"--time=/proc/{self.holder.pid}/ns/time_for_children"
        nsenter = f"{find('nsenter')} --target {self.holder.pid} --net --uts --mount {time}"
        return [find("sh"), "-c", f'exec {nsenter} --wdns="$PWD" -- "$@"', self.name]

    def run(self, words: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """`subprocess.run` here; by default it captures text and raises on failure."""
        defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "check": True}
        if "input" not in options:
            defaults["stdin"] = subprocess.DEVNULL
        return subprocess.run([*self.enter, *words], **{**defaults, **options})

    def seen(self, path: Path) -> Path:
        """The file that this host sees at an absolute path, as a path for us."""
        return Path(f"/proc/{self.holder.pid}/root") / path.relative_to("/")

    # Its processes

    def processes(self) -> list[psutil.Process]:
        """All that live here, but for what makes the host."""
        return [process for process in psutil.process_iter() if self._is_guest(process)]

    def wait_until_idle(self, timeout_s: float) -> list[psutil.Process]:
        """What is left after so long."""
        deadline = time.monotonic() + timeout_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _is_guest(self, process: psutil.Process) -> bool:
        try:
            if process.pid == self.holder.pid or self._net_of(process.pid) != self._net:
                return False
            # Not process.exe(): it remembers, and what sshd forks is sshd for a moment.
            program = Path(os.readlink(f"/proc/{process.pid}/exe")).name
            program = program.removesuffix("-wlm")  # Debian's slurmd is slurmd-wlm
            return program not in SYSTEM and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):  # it ended while we looked
            return False

    @staticmethod
    def _net_of(pid: int) -> int:
        return os.stat(f"/proc/{pid}/ns/net").st_ino

    # Its files

    def overlay(self, path: Path, text: str) -> None:
        """Give an existing file other content, on this host only."""
        content = self.claim.folder / f"{self.name}.overlay-{len(self._overlays)}"
        content.unlink(missing_ok=True)  # not truncate: an overlay that was removed may still be open
        content.write_text(text)
        shutil.copymode(self.seen(path), content)
        self.run(["mount", "--bind", str(content), str(path)])
        self._overlays.append(path)

    def remove_overlays(self) -> None:
        while self._overlays:
            self.run(["umount", "--lazy", str(self._overlays.pop())])

    def empty_disks(self) -> None:
        for disk in (self.private, self.small_disk):
            empty(self.seen(disk))

    # Its link

    def cut(self) -> None:
        """No packet passes any more, and nobody is told: the link stays up, the bridge drops."""
        call("bridge", "link", "set", "dev", self.link, "state", 0)

    def heal(self) -> None:
        call("bridge", "link", "set", "dev", self.link, "state", 3)

    def block_port(self, port: int | str) -> None:
        """Drop TCP from other hosts to this port, or to a range like "20000-20100", without a word.

        Established connections go on. A range with ephemeral ports in it drops answers to this host's calls too.
        """
        self.run(["ip", "rule", "add", *f"pref {PORT_RULES} iif eth0 ipproto tcp dport {port} blackhole".split()])
        self._blocked += 1

    def unblock_ports(self) -> None:
        while self._blocked:
            self.run(["ip", "rule", "delete", "pref", str(PORT_RULES)])
            self._blocked -= 1

    def restore(self) -> None:
        """As it was before any test."""
        self.heal()
        self.unblock_ports()
        self.remove_overlays()
        self.empty_disks()


def empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                entry.unlink()
