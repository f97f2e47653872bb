"""Which snapshot a training continues from."""

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rollcall.train.checkpoint.directory import SnapshotDirectory
from rollcall.train.checkpoint.manifest import FILE_NAME, compute_checksum, read_manifest
from rollcall.train.checkpoint.select import select_newest
from rollcall.world import RankInfo, World
from tests.train.checkpoint.saved import Attack, flip_bit


def single_rank() -> World:
    info = RankInfo(
        master_addr="localhost",
        master_port="0",
        nnodes=1,
        nproc_per_node=1,
        node_rank=0,
        world_size=1,
        backend="gloo",
        init_method="env://",
        global_rank=0,
        local_world_size=1,
        local_rank=0,
        hostname="localhost",
        process_id=os.getpid(),
    )
    return World(info, torch.device("cpu"), logging.getLogger("select"), lambda failed: None)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def put_code_in(path: Path) -> None:
    """With checksums that are right."""
    path.write_bytes(pickle.dumps(Attack(path.parent / "created")))
    manifest = read_manifest(path.parent)
    files = {name: compute_checksum(path.parent / name) for name in manifest.files}
    (path.parent / FILE_NAME).write_text(manifest.model_copy(update={"files": files}).model_dump_json())


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("__1_0.distcp", flip_bit, "__1_0.distcp is damaged (its checksum differs)"),
        ("__0_0.distcp", truncate, "bytes, expected"),
        (".metadata", Path.unlink, "cannot be read (No such file or directory)"),
        (".metadata", put_code_in, "which no snapshot contains"),
        (FILE_NAME, Path.unlink, "it has no manifest"),
        (FILE_NAME, truncate, "its manifest cannot be read"),
    ],
)
def test_a_damaged_snapshot_is_skipped(
    folder: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], None], message: str
) -> None:
    """Whatever is damaged, the one before is selected, and a warning says why. Code in a file is not run."""
    damage(folder / "step-00000006" / name)
    selected = select_newest(SnapshotDirectory(folder, keep=2), single_rank())
    assert selected is not None
    assert selected.step == 3
    (warning,) = caplog.messages
    assert warning.startswith(f"{folder / 'step-00000006'} is skipped: ")
    assert message in warning
    assert not (folder / "step-00000006" / "created").exists()


def test_a_folder_without_snapshots_is_a_new_training(tmp_path: Path) -> None:
    """Also if the folder does not exist yet."""
    assert select_newest(SnapshotDirectory(tmp_path / "new", keep=2), single_rank()) is None
