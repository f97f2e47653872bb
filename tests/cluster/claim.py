"""One number per pytest process: it names the links, the addresses and the folder."""

import contextlib
import os
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from .programs import call

NUMBERS = 200


@dataclass(frozen=True)
class Claim:
    """A number held until `release`, or until we die."""

    number: int
    lock: socket.socket

    @property
    def bridge(self) -> str:
        return f"rc{self.number}"

    @property
    def folder(self) -> Path:
        return Path(tempfile.gettempdir()) / f"rollcall-cluster-{self.number}"

    @property
    def private(self) -> Path:
        return self.folder / "private"

    @property
    def small_disk(self) -> Path:
        return self.folder / "small-disk"

    def link(self, n: int) -> str:
        """The bridge's end of host n's cable."""
        return f"{self.bridge}h{n}"

    def address(self, n: int) -> str:
        return f"10.77.{self.number}.{n}"

    def clear(self) -> None:
        """Take away all that bears this number, whoever left it."""
        kill_all(self.private)
        for link in links():
            if link == self.bridge or link.startswith(f"{self.bridge}h"):
                with contextlib.suppress(RuntimeError):  # it went with its namespace meanwhile
                    call("ip", "link", "delete", link)
        while self.small_disk.is_mount():
            call("umount", "--lazy", self.small_disk)
        shutil.rmtree(self.folder, ignore_errors=True)

    def release(self) -> None:
        self.clear()
        self.lock.close()


def claim() -> Claim:
    """The first free number from our xdist worker's on. Free ones with leftovers of a killed pytest are cleared."""
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = None
    for number in range(first, NUMBERS):
        found = take(number)
        if found is None:
            continue
        if mine is None:
            mine = found
            mine.clear()
        elif found.folder.exists():
            found.release()
        else:
            found.lock.close()
    if mine is None:
        raise RuntimeError(f"all numbers from {first} to {NUMBERS - 1} are in use by other pytest processes")
    return mine


def take(number: int) -> Claim | None:
    """An abstract socket is a lock that the kernel frees when its holder dies, and has our network's scope."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0rollcall-cluster-{number}")
    except OSError:
        lock.close()
        return None
    return Claim(number, lock)


def links() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def kill_all(private: Path) -> None:
    """Kill every process of our hosts: only they have this folder mounted."""
    while found := [process for process in psutil.process_iter() if has_mounted(process, private)]:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=0.05)


def has_mounted(process: psutil.Process, folder: Path) -> bool:
    try:
        mounts = Path(f"/proc/{process.pid}/mountinfo").read_text()
        return f" {folder} " in mounts and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False
