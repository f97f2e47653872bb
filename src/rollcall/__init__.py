"""rollcall starts PyTorch ranks with one command and tells each of them who it is.

The names below are loaded on first use: `import rollcall` alone does not import torch.
"""

from importlib import import_module

from rollcall import _renamed

TYPE_CHECKING = False  # not from typing, whose import would delay the start of the agent
if TYPE_CHECKING:
    from rollcall import explain
    from rollcall.errors import RankError, RollcallError, UsageError, WorldError
    from rollcall.explain.frames import load
    from rollcall.functions.api import spawn
    from rollcall.initialization.current_rank import rank_zero_only
    from rollcall.initialization.process_group import init
    from rollcall.logs import configure_logger
    from rollcall.ports import find_free_port, is_free_port
    from rollcall.record.phases import phase
    from rollcall.seeds import seed_all
    from rollcall.train.callbacks.callback import Callback
    from rollcall.train.callbacks.profile import Profile
    from rollcall.train.callbacks.throughput import Throughput
    from rollcall.train.checkpoint.snapshot import Snapshot
    from rollcall.train.data import prepare_dataloader
    from rollcall.train.early_stopping import EarlyStop
    from rollcall.train.recipes.recipe import Recipe
    from rollcall.train.sharding.options import Fsdp
    from rollcall.train.strategies import wrap
    from rollcall.train.trainer import Trainer
    from rollcall.train.weights.export import export_weights
    from rollcall.world import RankInfo, World, display, get_hostname, get_process_id

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "EarlyStop",
    "Fsdp",
    "Profile",
    "RankError",
    "RankInfo",
    "Recipe",
    "RollcallError",
    "Snapshot",
    "Throughput",
    "Trainer",
    "UsageError",
    "World",
    "WorldError",
    "configure_logger",
    "display",
    "explain",
    "export_weights",
    "find_free_port",
    "get_hostname",
    "get_process_id",
    "init",
    "is_free_port",
    "load",
    "phase",
    "prepare_dataloader",
    "rank_zero_only",
    "seed_all",
    "spawn",
    "wrap",
]

_HOMES = {
    "Callback": "train.callbacks.callback",
    "EarlyStop": "train.early_stopping",
    "Fsdp": "train.sharding.options",
    "Profile": "train.callbacks.profile",
    "RankError": "errors",
    "RankInfo": "world",
    "Recipe": "train.recipes.recipe",
    "RollcallError": "errors",
    "Snapshot": "train.checkpoint.snapshot",
    "Throughput": "train.callbacks.throughput",
    "Trainer": "train.trainer",
    "UsageError": "errors",
    "World": "world",
    "WorldError": "errors",
    "configure_logger": "logs",
    "display": "world",
    "export_weights": "train.weights.export",
    "find_free_port": "ports",
    "get_hostname": "world",
    "get_process_id": "world",
    "init": "initialization.process_group",
    "is_free_port": "ports",
    "load": "explain.frames",
    "load_ipython_extension": "shell.notebook",
    "phase": "record.phases",
    "prepare_dataloader": "train.data",
    "rank_zero_only": "initialization.current_rank",
    "seed_all": "seeds",
    "spawn": "functions.api",
    "unload_ipython_extension": "shell.notebook",
    "wrap": "train.strategies",
}


def __getattr__(name: str) -> object:
    if name == "explain":  # the folder rollcall/explain, which can also be called
        return import_module("rollcall.explain")
    if name not in _HOMES:
        raise AttributeError(f"module 'rollcall' has no attribute {name!r}")
    value = getattr(import_module(f"rollcall.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


_renamed.install()
