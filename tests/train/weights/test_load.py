"""A model on meta gets its values from a checkpoint of any kind, each rank only its part."""

import json
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import rollcall
from rollcall.train.sharding.options import Fsdp
from rollcall.train.strategies import unwrap
from rollcall.train.weights import safetensors
from tests.train.blocks import Blocks, on_meta
from tests.train.conftest import WarmRanks
from tests.train.small import differences


def state_of_a_model() -> dict[str, torch.Tensor]:
    torch.manual_seed(9)
    return Blocks().state_dict()


def write_safetensors(path: Path, state: dict[str, torch.Tensor]) -> None:
    shapes = {name: (each.dtype, each.shape) for name, each in state.items()}
    safetensors.write(path, shapes, state.values())


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights in every form."""
    folder, state = tmp_path_factory.mktemp("checkpoints"), state_of_a_model()
    once = {name: each for name, each in state.items() if name != "last.weight"}  # as transformers saves tied ones
    write_safetensors(folder / "whole.safetensors", once)
    parts = folder / "parts"
    parts.mkdir()
    files = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(state)}
    for file in set(files.values()):
        write_safetensors(parts / file, {name: each for name, each in state.items() if files[name] == file})
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    torch.save({"model": state, "epoch": 3}, folder / "saved.pt")
    with warnings.catch_warnings(action="ignore"):  # of one process, as is meant
        dcp.save({"model": state}, checkpoint_id=folder / "dcp", no_dist=True)
    write_safetensors(folder / "lacks.safetensors", {name: state[name] for name in list(state)[:-1]})
    write_safetensors(folder / "more.safetensors", {**state, "tail.weight": torch.ones(2)})
    write_safetensors(folder / "unlike.safetensors", {**state, "head.bias": torch.ones(4)})
    (folder / "cut.safetensors").write_bytes((folder / "whole.safetensors").read_bytes()[:-5])
    torch.save(nn.Linear(2, 2), folder / "code.pt")
    (folder / "text.pt").write_text("not a checkpoint")
    (folder / "empty").mkdir()
    return {path.stem: path for path in folder.iterdir()}


def load_all(paths: list[Path], strategy: Any) -> list[dict[str, torch.Tensor]]:
    with rollcall.init() as world:
        found = []
        for path in paths:
            model: Any = unwrap(rollcall.wrap(on_meta(), world, strategy, weights=path))
            state = model.state_dict()
            found.append({name: getattr(each, "full_tensor", lambda each=each: each)() for name, each in state.items()})
            assert float(model.scale.factor) == 0.5  # not in the checkpoint
            assert model.last.weight is model.first.weight
        return found


@pytest.mark.parametrize(
    ("size", "strategy"), [(1, "none"), (3, "fsdp"), (4, Fsdp(tensor_parallel=2, offload=True)), (2, "ddp")]
)
def test_every_kind_of_checkpoint_is_loaded(
    ranks: WarmRanks, checkpoints: dict[str, Path], size: int, strategy: Any
) -> None:
    """safetensors in one file and in several, torch.save, DCP: the same values, bit for bit."""
    paths = [checkpoints[name] for name in ("whole", "parts", "saved", "dcp")]
    for found in ranks(partial(load_all, paths, strategy), size):
        assert [differences(state_of_a_model(), each) for each in found] == [[], [], [], []]


class WithoutReset(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))


def half_on_meta() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


def gain_on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(2, 2), WithoutReset())


def only_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.reset_parameters()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "lacks": ({}, r"lacks.safetensors is of another model: it has no head.bias \[3\]: use the checkpoint"),
    "more": ({}, r"more.safetensors is of another model: its tail.weight \[2\] is not in the model"),
    "unlike": ({}, r"unlike.safetensors is of another model: it has head.bias \[4\] where the model has \[3\]"),
    "cut": ({}, r"cut.safetensors cannot be read \(its head.bias lies beyond the end of the file\)"),
    "code": ({}, "code.pt is not a file of torch.save that is safe to load"),
    "text": ({}, "text.pt is not a file that torch.save has written since torch 1.6"),
    "empty": ({}, "empty contains no checkpoint: expected a .safetensors file"),
    "nowhere": ({}, "nowhere does not exist: expected a .safetensors file"),
    "units": ({"strategy": Fsdp(units="Blok")}, "no module of the model is a 'Blok': its classes are Block, Blocks"),
    "number of units": ({"strategy": Fsdp(units=3)}, "units is 3: expected a name of a class"),
    "no unit": ({"strategy": Fsdp(units=lambda *_: False)}, "units: the function selects none of the model's 18"),
    "replicas": ({"strategy": Fsdp(replicas=3)}, "2 ranks cannot be divided into 3 replicas"),
    "mesh": (
        {"strategy": Fsdp(replicas=2, tensor_parallel=2)},
        "2 ranks cannot be divided into 2 replicas × 2 tensor parallel: use numbers whose product divides 2",
    ),
    "hosts": ({"strategy": Fsdp(replicas="host")}, "replicas is 'host': expected 1 or more, or 'hosts'"),
    "plan": ({"strategy": Fsdp(tensor_parallel=2, plan={"blok.*": "colwise"})}, "no module of the model is named 'blo"),
    "style": ({"strategy": Fsdp(tensor_parallel=2, plan={"head": "col"})}, "'col' of 'head' is not known: use colwise"),
    "no plan": ({"make": gain_on_meta, "initialize": only_linear, "strategy": Fsdp(tensor_parallel=2)}, "has no plan"),
    "half": ({"make": half_on_meta}, "2 parameters of the model are not on meta, the others are"),
    "no reset": ({"make": gain_on_meta}, r"1 \(WithoutReset\) is on meta and has no reset_parameters for its gain"),
    "left out": (
        {"make": gain_on_meta, "initialize": only_linear},
        "1.gain has no values after initialize: let it handle WithoutReset",
    ),
}


def refuse_all(paths: dict[str, Path]) -> dict[str, str]:
    """All on the same ranks, so each must leave the ranks in step with each other."""
    found = {}
    with rollcall.init() as world:
        for name, (options, _) in BAD.items():
            given = {"make": on_meta, "strategy": "fsdp", "weights": paths.get(name), **options}
            try:
                rollcall.wrap(given.pop("make")(), world, **given)
            except rollcall.UsageError as error:
                found[name] = str(error)
    return found


def test_bad_input_is_one_sentence_on_all_ranks(ranks: WarmRanks, checkpoints: dict[str, Path]) -> None:
    """Checkpoints, units, meshes and plans that do not fit."""
    paths = {**checkpoints, "nowhere": Path("nowhere")}
    for found in ranks(partial(refuse_all, paths), 2):
        assert found.keys() == BAD.keys()
        for name, (_, message) in BAD.items():
            assert re.search(message, found[name]), found[name]
            assert "\n" not in found[name]
