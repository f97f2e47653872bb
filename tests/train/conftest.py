"""Real ranks, forked from a server that has already imported what every training needs."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollcall.functions.api import bound, raise_first
from rollcall.functions.pool import RankPool
from tests.train.small import PLAIN_MODEL, fit

FILLER = "filler"


class WarmRanks:
    """Like `rollcall.spawn`, but keeps what the ranks print in `output`."""

    def __init__(self, server: RankPool) -> None:
        self._server = server
        self.output = ""

    def __call__(self, fn: Callable[..., Any], ranks: int) -> list[Any]:
        answers = self._server.call(bound(fn, ()), ranks, timeout_s=180, capture=True)
        self.output = "".join(answer.output for answer in answers)
        print(self.output)
        raise_first(answers, 60)
        return [answer.value for answer in answers]


@pytest.fixture(scope="session")
def _server() -> Iterator[RankPool]:
    server = RankPool(preload=("torch._dynamo", "tensorboard.summary.writer.record_writer", "tests.train.small"))
    yield server
    server.close()


@pytest.fixture
def ranks(_server: RankPool) -> WarmRanks:
    return WarmRanks(_server)


@pytest.fixture(scope="session")
def plain(_server: RankPool) -> dict[str, Any]:
    """The result of three epochs on 2 ranks with DDP and without randomness, to compare others with."""
    return dict(WarmRanks(_server)(partial(fit, model=PLAIN_MODEL), 2)[0])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Fill the disk of this folder to the last byte."""
    with contextlib.suppress(OSError), open(folder / FILLER, "wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)
