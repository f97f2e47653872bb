"""Snapshots: whole or not at all, and nothing but data."""

import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rollcall
from rollcall.functions.pool import CallServer
from rollcall.train.checkpoint import manifest, storage
from rollcall.train.checkpoint.manifest import Manifest
from rollcall.train.checkpoint.staging import Staging
from rollcall.train.checkpoint.state import State
from tests.train.conftest import FILLER, Warm, fill
from tests.train.small import PLAIN, fit


def save_steps(*, folder: Path, steps: list[int], keep: int = 3, rank_folder: bool = False) -> int | None:
    """A snapshot for each step, in which every parameter is that number."""
    with rollcall.init() as world:
        own = folder / str(world.rank) if rank_folder else folder
        model = rollcall.wrap(PLAIN(), world)
        optimizer = torch.optim.Adam(model.parameters())
        with rollcall.Snapshot(own, world, model, optimizer, keep=keep) as snapshot:
            for step in steps:
                _fill(model, step)
                snapshot.save(step, wait=True)
        return snapshot.newest


def load_newest(*, folder: Path, model: Any = PLAIN, optimizer: Any = torch.optim.Adam) -> tuple[int, float]:
    """The step, and what the parameters are."""
    with rollcall.init() as world:
        made = rollcall.wrap(model(), world)
        progress = rollcall.Snapshot(folder, world, made, optimizer(made.parameters())).load()
        values = {each.mean().item() for each in made.parameters()}
        return progress.step, values.pop() if len(values) == 1 else -1.0


def _fill(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


@pytest.fixture(scope="module")
def saved(_server: CallServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which 2 ranks have saved steps 1, 2, 3 and 6, to keep two of them."""
    folder = tmp_path_factory.mktemp("saved")
    assert Warm(_server)(partial(save_steps, folder=folder, steps=[1, 2, 3, 6], keep=2), 2) == [6, 6]
    return folder


@pytest.fixture
def folder(tmp_path: Path, saved: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "snapshots"))


def test_the_last_k_are_kept(ranks: Warm, folder: Path) -> None:
    """And nothing else is left in the folder."""
    assert sorted(os.listdir(folder)) == ["step-00000003", "step-00000006"]
    assert ranks(partial(load_newest, folder=folder), 2) == [(6, 6.0)] * 2


def test_every_rank_writes_its_share(saved: Path) -> None:
    """What all ranks have is written once."""
    files = manifest.read(saved / "step-00000006").files
    assert sorted(files) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    names = storage.contents(saved / "step-00000006")
    assert sum(name.startswith("model.") for name in names) == 4


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("__1_0.distcp", flip, "__1_0.distcp is damaged (its checksum differs)"),
        ("__0_0.distcp", cut, "bytes in place of"),
        (".metadata", Path.unlink, "cannot be read (No such file or directory)"),
        ("manifest.json", Path.unlink, "it has no manifest"),
        ("manifest.json", cut, "its manifest cannot be read"),
    ],
)
def test_a_damaged_snapshot_gives_way_to_the_one_before(
    ranks: Warm, folder: Path, name: str, damage: Any, words: str
) -> None:
    """Whatever is damaged is named, once, by rank 0."""
    damage(folder / "step-00000006" / name)
    assert ranks(partial(load_newest, folder=folder), 2) == [(3, 3.0)] * 2
    assert ranks.said.count("step-00000006 is left out") == 1
    assert words in ranks.said


def test_the_step_of_a_damaged_snapshot_is_saved_again(ranks: Warm, folder: Path) -> None:
    """It takes the place of the damaged one."""
    flip(folder / "step-00000006" / "__0_0.distcp")
    ranks(partial(save_steps, folder=folder, steps=[6]), 2)
    assert ranks(partial(load_newest, folder=folder), 2) == [(6, 6.0)] * 2
    assert sorted(os.listdir(folder)) == ["step-00000003", "step-00000006"]


def test_what_an_interrupted_save_left_is_removed(ranks: Warm, folder: Path) -> None:
    """A draft is no snapshot."""
    (folder / ".step-00000009.writing").mkdir()
    (folder / ".step-00000002.removing").mkdir()
    assert ranks(partial(load_newest, folder=folder), 1) == [(6, 6.0)]
    assert sorted(os.listdir(folder)) == ["step-00000003", "step-00000006"]


class Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_code_in_the_metadata_is_not_run(ranks: Warm, folder: Path, tmp_path: Path) -> None:
    """Even under a manifest that vouches for it."""
    newest, mark = folder / "step-00000006", tmp_path / "mark"
    (newest / ".metadata").write_bytes(pickle.dumps(Attack(mark)))
    _vouch(newest)
    assert ranks(partial(load_newest, folder=folder), 1) == [(3, 3.0)]
    assert "which no snapshot contains" in ranks.said
    assert not mark.exists()


def attack_values(*, folder: Path, mark: Path) -> None:
    """Torch's own writer, with an object that would run code among the values."""
    with rollcall.init() as world:
        model = PLAIN()
        storage.write(
            {"plain.model": Attack(mark), **{f"model.{n}": p for n, p in model.state_dict().items()}}, folder, None
        )
        files = {path.name: manifest.describe(path) for path in folder.iterdir()}
        facts = Manifest(step=6, epoch=0, world_size=world.size, optimizer="Adam", torch="", files=files)
        (folder / manifest.NAME).write_text(facts.model_dump_json())


def test_code_in_a_value_is_not_run(ranks: Warm, tmp_path: Path) -> None:
    """It is refused by name."""
    mark = tmp_path / "mark"
    ranks(partial(attack_values, folder=tmp_path / "step-00000006", mark=mark), 1)
    with pytest.raises(rollcall.UsageError, match=r"plain.model asks for code"):
        ranks(partial(load_newest, folder=tmp_path), 1)
    assert not mark.exists()


def _vouch(folder: Path) -> None:
    facts = manifest.read(folder)
    files = {name: manifest.describe(folder / name) for name in facts.files}
    (folder / manifest.NAME).write_text(facts.model_copy(update={"files": files}).model_dump_json())


def other_model() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 8), nn.Identity(), nn.ReLU(), nn.Linear(8, 3))


def test_a_snapshot_of_another_model_is_refused(ranks: Warm, folder: Path) -> None:
    """Names and shapes are listed; the snapshot stays."""
    with pytest.raises(rollcall.UsageError) as caught:
        ranks(partial(load_newest, folder=folder, model=other_model), 2)
    text = str(caught.value)
    assert text.startswith("ranks 0-1: ")
    assert "its 4.weight [3, 12], 4.bias [3] is not in the model" in text
    assert "it has no 3.weight [3, 8], 3.bias [3]" in text
    assert "it has 0.weight [12, 10] where the model has [8, 10], 0.bias [12] where the model has [8]" in text
    assert (folder / "step-00000006").exists()


def test_a_snapshot_of_another_optimizer_is_refused(ranks: Warm, folder: Path) -> None:
    """What it holds means nothing to this one."""
    with pytest.raises(rollcall.UsageError, match="is of Adam, this training has SGD"):
        ranks(partial(load_newest, folder=folder, optimizer=partial(torch.optim.SGD, lr=0.1)), 1)


def test_ranks_that_see_other_folders_end_together(ranks: Warm, tmp_path: Path) -> None:
    """As on hosts that do not share it: named at once, not at the first restart."""
    with pytest.raises(rollcall.UsageError, match=r"^rank 1: .*1 is not where rank 0 writes its snapshots"):
        ranks(partial(save_steps, folder=tmp_path, steps=[1], rank_folder=True), 2)


def found_differently(*, folder: Path) -> None:
    with rollcall.init() as world:
        model = rollcall.wrap(PLAIN(), world)
        snapshot = rollcall.Snapshot(folder, world, model)
        if world.rank == 1:  # as a host sees a folder of its own that is not mounted
            snapshot._shelf.folder = folder / "elsewhere"
        snapshot.load()


def test_ranks_that_find_other_snapshots_end_together(ranks: Warm, folder: Path) -> None:
    """Who found what is named."""
    with pytest.raises(rollcall.UsageError, match="rank 0 has steps 3, 6; rank 1 has none"):
        ranks(partial(found_differently, folder=folder), 2)


def test_a_folder_that_is_not_writable_is_refused(ranks: Warm, tmp_path: Path) -> None:
    """Before anything is trained."""
    (tmp_path / "file").write_text("")
    with pytest.raises(rollcall.UsageError, match=r"ranks 0-1: the snapshot folder .* is not writable"):
        ranks(partial(fit, folder=tmp_path / "file" / "below"), 2)


def fill_disk(trainer: Any) -> None:
    """From step 4 to 10 there is not one byte left on the disk."""
    if trainer.world.rank != 1 or trainer.step not in (4, 10):
        return
    trainer.snapshot.wait()
    if trainer.step == 4:
        fill(trainer.snapshot.folder)
    else:
        (trainer.snapshot.folder / FILLER).unlink()


def test_a_full_disk_ends_no_training(ranks: Warm, small_disk: Path) -> None:
    """It is said, in the system's words; the newest snapshot stays, and later ones are written again."""
    full = partial(fit, folder=small_disk, save_every="3 steps", before_step=fill_disk, keep=9)
    assert ranks(full, 2)[0]["step"] == 18
    assert "the snapshot of step 6 was not written (No space left on device" in ranks.said
    assert "the newest is that of step 3" in ranks.said
    steps = [int(name[5:]) for name in sorted(os.listdir(small_disk)) if name.startswith("step-")]
    assert steps == [3, 12, 15, 18]


def test_weights_that_are_not_finite_are_not_saved(ranks: Warm, folder: Path) -> None:
    """A snapshot is good, or it is not there."""
    ranks(partial(save_infinite, folder=folder), 2)
    assert "the snapshot of step 7 was not written (0.weight is not finite)" in ranks.said
    assert sorted(os.listdir(folder)) == ["step-00000003", "step-00000006"]


def test_weights_that_somebody_changes_meanwhile_are_not_saved() -> None:
    """Only the optimizer knows that it has to wait for the copy: what others do to the weights is noticed."""
    staging = Staging(torch.device("cpu"))
    weight = torch.zeros(3)
    draft = staging.begin(State({"model.weight": weight, "model.buffer": weight}, frozenset({"model.weight"})))
    weight += 1
    assert torch.equal(draft.finish()["model.buffer"], torch.zeros(3))
    assert draft.what_is_torn() == "weight"


def save_infinite(*, folder: Path) -> None:
    with rollcall.init() as world:
        model = rollcall.wrap(PLAIN(), world)
        with torch.no_grad():
            next(model.parameters())[0, 0] = torch.inf
        with rollcall.Snapshot(folder, world, model, torch.optim.Adam(model.parameters())) as snapshot:
            snapshot.save(7)


def test_state_that_could_not_be_loaded_is_not_saved(ranks: Warm, tmp_path: Path) -> None:
    """Objects of classes are refused when they come, not when they are needed."""
    with pytest.raises(rollcall.UsageError, match=r"the state of odd\['what'\] is a Attack"):
        ranks(partial(save_odd, folder=tmp_path), 1)


class Odd:
    def state_dict(self) -> dict[str, Any]:
        return {"what": Attack(Path("mark"))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def save_odd(*, folder: Path) -> None:
    with rollcall.init() as world:
        model = rollcall.wrap(PLAIN(), world)
        rollcall.Snapshot(folder, world, model, extra={"odd": Odd()}).save(1)
