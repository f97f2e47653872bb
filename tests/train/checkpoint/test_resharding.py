"""A snapshot continues under any strategy and world size; it is kept, copied and exported as asked."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import rollcall
from rollcall.errors import UsageError
from rollcall.train.checkpoint import upload
from rollcall.train.checkpoint.directory import SnapshotDirectory
from rollcall.train.checkpoint.manifest import FILE_NAME, Manifest, read_manifest
from rollcall.train.sharding.options import Fsdp
from rollcall.train.weights.export import export_weights
from rollcall.train.weights.safetensors import SafetensorsFile
from tests.train.blocks import Blocks, train
from tests.train.conftest import WarmRanks
from tests.train.small import differences, distance


def test_strategies_and_world_sizes_follow_each_other(ranks: WarmRanks, tmp_path: Path) -> None:
    """DDP on 4 ranks, FSDP2 on 3, HSDP on 4, tensor parallel on 4, one rank: as one rank alone, within 1e-5."""
    run: Any = partial(train, make=Blocks, ema=0.9)
    alone = ranks(partial(run, batch_size=12, epochs=5), 1)[0]
    ways: list[tuple[int, dict[str, Any]]] = [
        (4, {"strategy": "ddp", "verify": True}),
        (3, {"strategy": "fsdp", "verify": True}),
        (4, {"strategy": Fsdp(replicas=2), "verify": True}),
        (4, {"strategy": Fsdp(tensor_parallel=2), "tensor_parallel": 2, "verify": True}),
        (1, {}),
    ]
    for epochs, (size, options) in enumerate(ways, 1):
        batch = 12 * options.get("tensor_parallel", 1) // size
        found = ranks(partial(run, batch_size=batch, folder=tmp_path, epochs=epochs, **options), size)[0]
        assert ("continuing from" in ranks.output) == (epochs > 1)
        assert "was not written" not in ranks.output
    assert found["step"] == alone["step"]
    assert distance(alone["weights"], found["weights"]) < 1e-5
    export_weights(tmp_path, tmp_path / "model.safetensors")
    exported = SafetensorsFile(tmp_path / "model.safetensors")
    assert differences({name: exported.tensor(name) for name in exported.entries}, found["weights"]) == []
    export_weights(tmp_path, tmp_path / "ema.safetensors", ema=True, dtype=torch.bfloat16)
    assert SafetensorsFile(tmp_path / "ema.safetensors").tensor("head.bias").dtype == torch.bfloat16


def test_every_kth_snapshot_is_kept_and_copied(ranks: WarmRanks, tmp_path: Path) -> None:
    """The two newest and every third, in both folders; the copies can be continued from."""
    run: Any = partial(train, make=Blocks, batch_size=8, folder=tmp_path / "here", keep=2, keep_every=3)
    ranks(partial(run, epochs=8, upload=tmp_path / "there"), 2)
    numbers = {path.name: read_manifest(path).number for path in sorted((tmp_path / "here").glob("step-*"))}
    assert list(numbers.values()) == [3, 6, 7, 8]
    copies = sorted((tmp_path / "there").glob("step-*"))
    assert copies[-1].name == max(numbers)
    assert {read_manifest(path).number for path in copies} <= {3, 6, 7, 8}  # a slow copy leaves out older ones
    ranks(partial(run, folder=tmp_path / "there", epochs=9), 2)
    assert "continuing from" in ranks.output


def _publish(directory: SnapshotDirectory, step: int) -> None:
    directory.draft_path(step).mkdir(parents=True)
    manifest = Manifest(step=step, epoch=0, world_size=1, optimizer=None, torch="2", files={})
    directory.publish(manifest)


def test_a_snapshot_that_is_being_copied_stays(tmp_path: Path) -> None:
    """Until its copy is complete."""
    directory = SnapshotDirectory(tmp_path, keep=1)
    _publish(directory, 1)
    directory.held = {1}
    _publish(directory, 2)
    assert directory.steps() == [2, 1]
    directory.held = set()
    _publish(directory, 3)
    assert directory.steps() == [3]


def test_a_damaged_copy_has_no_manifest(tmp_path: Path) -> None:
    """What was read back differs from the manifest: the copy does not count."""
    directory = SnapshotDirectory(tmp_path / "here", keep=1)
    _publish(directory, 1)
    path = directory.path_of(1)
    facts = json.loads((path / FILE_NAME).read_text())
    (path / "data").write_bytes(b"data")
    facts["files"] = {"data": {"size_bytes": 4, "sha256": "0" * 64}}
    (path / FILE_NAME).write_text(json.dumps(facts))
    assert upload.copy(path, tmp_path / "there") == "data is damaged (its checksum differs)"
    assert not (tmp_path / "there" / FILE_NAME).exists()


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    """A folder without snapshots, and a number of snapshots to keep that cannot be."""
    with pytest.raises(UsageError, match="is no snapshot that can be exported: it has no manifest"):
        export_weights(tmp_path, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="keep_every is 0: expected 1 or more"):
        rollcall.Snapshot(tmp_path, None, torch.nn.Linear(1, 1), keep_every=0)  # type: ignore[arg-type]
