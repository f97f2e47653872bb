"""Snapshots that two ranks have saved."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from rollcall.functions.pool import RankPool
from tests.train.checkpoint.saved import save_steps
from tests.train.conftest import WarmRanks


@pytest.fixture(scope="session")
def saved(_server: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which 2 ranks have saved steps 1, 2, 3 and 6 with keep=2."""
    folder = tmp_path_factory.mktemp("saved")
    assert WarmRanks(_server)(partial(save_steps, folder=folder, steps=[1, 2, 3, 6], keep=2), 2) == [6, 6]
    return folder


@pytest.fixture
def folder(tmp_path: Path, saved: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "snapshots"))
