"""Snapshots are complete or not there, and contain only data."""

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

import rollcall
from rollcall.train.checkpoint import storage
from rollcall.train.checkpoint.manifest import FILE_NAME, Manifest, compute_checksum, read_manifest
from rollcall.train.checkpoint.staging import StagingBuffers
from rollcall.train.checkpoint.state import RankState
from tests.train.checkpoint.saved import Attack, flip_bit, load_newest, save_steps
from tests.train.conftest import FILLER, WarmRanks, fill
from tests.train.small import PLAIN_MODEL, fit


def test_the_newest_are_kept(ranks: WarmRanks, folder: Path) -> None:
    """The folder contains nothing else."""
    assert sorted(os.listdir(folder)) == ["step-00000003", "step-00000006"]
    assert ranks(partial(load_newest, folder=folder), 2) == [(6, 6.0)] * 2


def test_every_rank_writes_its_share(saved: Path) -> None:
    """Tensors that are equal on all ranks are written once."""
    files = read_manifest(saved / "step-00000006").files
    assert sorted(files) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    names = storage.contents(saved / "step-00000006")
    assert sum(name.startswith("model.") for name in names) == 4


def test_several_threads_write_and_read_files_of_their_own(tmp_path: Path) -> None:
    """The checksums, computed while the files are written, are those of the files."""
    values = {f"model.{number}": torch.randn(number * 100, 10) for number in range(1, 8)}
    checksums = storage.write({**values, "plain.step": 7}, tmp_path / "draft", None, threads=3)
    assert len(checksums) == 3
    assert checksums == {path.name: compute_checksum(path) for path in (tmp_path / "draft").glob("*.distcp")}
    found: dict[str, Any] = {name: torch.empty_like(each) for name, each in values.items()}
    found["plain.step"] = None
    storage.read(found, tmp_path / "draft", threads=3)
    assert found.pop("plain.step") == 7
    assert all(torch.equal(found[name], each) for name, each in values.items())


def test_an_error_of_any_thread_is_raised(small_disk: Path) -> None:
    """In torch's own threads it would be lost, and the snapshot would lack tensors."""
    values = {f"model.{number}": torch.zeros(128, 1024) for number in range(3)}
    with pytest.raises(CheckpointException, match="No space left"):
        storage.write(values, small_disk / "draft", None, threads=3)


def test_tensors_of_the_optimizer_are_loaded_in_place(tmp_path: Path) -> None:
    """Another copy of them would be more than many a GPU has room for."""
    with rollcall.init() as world:
        model = rollcall.wrap(PLAIN_MODEL(), world, "none")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 10)).sum().backward()
        optimizer.step()
        with rollcall.Snapshot(tmp_path, world, model, optimizer) as snapshot:
            snapshot.save(1, wait=True)
            moments = [state["exp_avg"] for state in optimizer.state.values()]
            before = [each.clone() for each in moments]
            optimizer.step()
            snapshot.load()
        after = [state["exp_avg"] for state in optimizer.state.values()]
        assert all(one is other for one, other in zip(moments, after, strict=True))
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_damaged_snapshot_is_skipped_on_all_ranks(ranks: WarmRanks, folder: Path) -> None:
    """The one before is loaded; rank 0 says once what is damaged."""
    flip_bit(folder / "step-00000006" / "__1_0.distcp")
    assert ranks(partial(load_newest, folder=folder), 2) == [(3, 3.0)] * 2
    assert ranks.output.count("step-00000006 is skipped: __1_0.distcp is damaged (its checksum differs)") == 1


def test_the_step_of_a_damaged_snapshot_is_saved_again(ranks: WarmRanks, folder: Path) -> None:
    """It replaces the damaged one."""
    flip_bit(folder / "step-00000006" / "__0_0.distcp")
    ranks(partial(save_steps, folder=folder, steps=[6]), 2)
    assert ranks(partial(load_newest, folder=folder), 2) == [(6, 6.0)] * 2
    assert sorted(os.listdir(folder)) == ["step-00000003", "step-00000006"]


def test_what_an_interrupted_save_left_is_removed(ranks: WarmRanks, folder: Path) -> None:
    """Drafts are not loaded."""
    (folder / ".step-00000009.writing").mkdir()
    (folder / ".step-00000002.removing").mkdir()
    assert ranks(partial(load_newest, folder=folder), 1) == [(6, 6.0)]
    assert sorted(os.listdir(folder)) == ["step-00000003", "step-00000006"]


def save_attack(*, folder: Path, created: Path) -> None:
    """Save a snapshot in which one value runs code when it is unpickled."""
    with rollcall.init() as world:
        model = PLAIN_MODEL()
        storage.write(
            {"plain.model": Attack(created), **{f"model.{n}": p for n, p in model.state_dict().items()}}, folder, None
        )
        files = {path.name: compute_checksum(path) for path in folder.iterdir()}
        manifest = Manifest(step=6, epoch=0, world_size=world.size, optimizer="Adam", torch="", files=files)
        (folder / FILE_NAME).write_text(manifest.model_dump_json())


def test_code_in_a_value_is_not_run(ranks: WarmRanks, tmp_path: Path) -> None:
    """The error names the value."""
    created = tmp_path / "created"
    ranks(partial(save_attack, folder=tmp_path / "step-00000006", created=created), 1)
    with pytest.raises(rollcall.UsageError, match=r"plain.model names code"):
        ranks(partial(load_newest, folder=tmp_path), 1)
    assert not created.exists()


def other_model() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 8), nn.Identity(), nn.ReLU(), nn.Linear(8, 3))


def test_a_snapshot_of_another_model_is_refused(ranks: WarmRanks, folder: Path) -> None:
    """The error lists names and shapes; the snapshot stays."""
    with pytest.raises(rollcall.UsageError) as caught:
        ranks(partial(load_newest, folder=folder, model=other_model), 2)
    text = str(caught.value)
    assert text.startswith("ranks 0-1: ")
    assert "its 4.weight [3, 12], 4.bias [3] is not in the model" in text
    assert "it has no 3.weight [3, 8], 3.bias [3]" in text
    assert "it has 0.weight [12, 10] where the model has [8, 10], 0.bias [12] where the model has [8]" in text
    assert (folder / "step-00000006").exists()


def test_a_snapshot_of_another_optimizer_is_refused(ranks: WarmRanks, folder: Path) -> None:
    """Its state is of no use to this one."""
    with pytest.raises(rollcall.UsageError, match="was saved with Adam, this training has SGD"):
        ranks(partial(load_newest, folder=folder, optimizer=partial(torch.optim.SGD, lr=0.1)), 1)


def test_a_folder_that_is_not_shared_is_refused(ranks: WarmRanks, tmp_path: Path) -> None:
    """At once, not at the first restart."""
    with pytest.raises(rollcall.UsageError, match=r"^rank 1: .*1 is not the folder that rank 0 writes to"):
        ranks(partial(save_steps, folder=tmp_path, steps=[1], folder_per_rank=True), 2)


def load_different_folders(*, folder: Path) -> None:
    with rollcall.init() as world:
        model = rollcall.wrap(PLAIN_MODEL(), world)
        snapshot = rollcall.Snapshot(folder, world, model)
        if world.rank == 1:  # as on a host where the shared folder is not mounted
            snapshot._directory.folder = folder / "not-mounted"
        snapshot.load()


def test_ranks_that_find_different_snapshots_end_together(ranks: WarmRanks, folder: Path) -> None:
    """The error says which rank found what."""
    with pytest.raises(rollcall.UsageError, match="rank 0 has steps 3, 6; rank 1 has none"):
        ranks(partial(load_different_folders, folder=folder), 2)


def test_a_folder_that_is_not_writable_is_refused(ranks: WarmRanks, tmp_path: Path) -> None:
    """Before the first step."""
    (tmp_path / "file").write_text("")
    with pytest.raises(rollcall.UsageError, match=r"ranks 0-1: the snapshot folder .* is not writable"):
        ranks(partial(fit, folder=tmp_path / "file" / "below"), 2)


def fill_disk(trainer: Any) -> None:
    """The disk is full from step 4 to step 10."""
    if trainer.world.rank != 1 or trainer.step not in (4, 10):
        return
    trainer.snapshot.wait()
    if trainer.step == 4:
        fill(trainer.snapshot.folder)
    else:
        (trainer.snapshot.folder / FILLER).unlink()


def test_a_full_disk_does_not_end_the_training(ranks: WarmRanks, small_disk: Path) -> None:
    """A warning gives the system's reason; the newest snapshot stays, and later ones are written."""
    full = partial(fit, folder=small_disk, save_every="3 steps", before_step=fill_disk, keep=9)
    assert ranks(full, 2)[0]["step"] == 18
    assert "the snapshot of step 6 was not written (No space left on device" in ranks.output
    assert "the newest is that of step 3" in ranks.output
    steps = [int(name[5:]) for name in sorted(os.listdir(small_disk)) if name.startswith("step-")]
    assert steps == [3, 12, 15, 18]


def test_weights_that_are_not_finite_are_not_saved(ranks: WarmRanks, folder: Path) -> None:
    """The warning names the tensor."""
    ranks(partial(save_infinite, folder=folder), 2)
    assert "the snapshot of step 7 was not written (0.weight is not finite)" in ranks.output
    assert sorted(os.listdir(folder)) == ["step-00000003", "step-00000006"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_one_value_that_is_not_finite_is_found(value: float, dtype: torch.dtype) -> None:
    tensors = {"model.empty": torch.empty(0, 3), "model.count": torch.ones(2, dtype=torch.long)}
    tensors["model.good"] = torch.ones(5, dtype=dtype)
    staged = StagingBuffers(torch.device("cpu")).begin(RankState(dict(tensors), frozenset()))
    assert staged.find_non_finite() is None
    tensors["model.bad"] = torch.tensor([1.0, value, 2.0]).to(dtype)
    staged = StagingBuffers(torch.device("cpu")).begin(RankState(dict(tensors), frozenset()))
    assert staged.find_non_finite() == "bad"


def test_weights_that_change_during_the_copy_are_not_saved() -> None:
    """Only the optimizer waits for the copy: a change by anything else is detected."""
    staging = StagingBuffers(torch.device("cpu"))
    weight = torch.zeros(3)
    staged = staging.begin(RankState({"model.weight": weight, "model.buffer": weight}, frozenset({"model.weight"})))
    weight += 1
    assert torch.equal(staged.finish()["model.buffer"], torch.zeros(3))
    assert staged.changed == "weight"


def save_infinite(*, folder: Path) -> None:
    with rollcall.init() as world:
        model = rollcall.wrap(PLAIN_MODEL(), world)
        with torch.no_grad():
            next(model.parameters())[0, 0] = torch.inf
        with rollcall.Snapshot(folder, world, model, torch.optim.Adam(model.parameters())) as snapshot:
            snapshot.save(7)


def test_state_that_could_not_be_loaded_is_not_saved(ranks: WarmRanks, tmp_path: Path) -> None:
    """An object of a class is refused when it is saved, not when it is loaded."""
    with pytest.raises(rollcall.UsageError, match=r"the state of odd\['value'\] is a Attack"):
        ranks(partial(save_odd, folder=tmp_path), 1)


class Odd:
    def state_dict(self) -> dict[str, Any]:
        return {"value": Attack(Path("created"))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def save_odd(*, folder: Path) -> None:
    with rollcall.init() as world:
        model = rollcall.wrap(PLAIN_MODEL(), world)
        rollcall.Snapshot(folder, world, model, extra={"odd": Odd()}).save(1)
