"""Modules that have moved: the old name still imports, with a DeprecationWarning. To be removed in the next version."""

import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

_MOVED = {
    "attendance": "initialization.roll_call",
    "env": "initialization.environment",
    "explain.show": "explain.terminal",
    "group": "initialization.process_group",
    "hostlist": "protocol.host_list",
    "record.layout": "record.ring_format",
    "report.live": "live.reader",
    "report.watch": "live.terminal",
    "report.web": "live.server",
    "stores": "initialization.stores",
    "train.early": "train.early_stopping",
    "train.recipe": "train.digits.config",
    "train.snapshot": "train.checkpoint.snapshot",
    "train.state": "train.checkpoint.state",
}

_EXPERIMENTS = (
    "backends", "bandwidth", "barrier", "collectives", "deadlock", "gradients", "groups", "hello", "hosts", "isend",
    "mismatch", "overlap", "ring", "scaling", "send", "straggler",
)  # fmt: skip
_NEW_NAMES = {
    **{f"rollcall.{old}": f"rollcall.{new}" for old, new in _MOVED.items()},
    **{f"rollcall.lab.{name}": f"rollcall.lab.experiments.{name}" for name in _EXPERIMENTS},
}


class _Alias(Loader):
    """Gives the module of the new name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = _NEW_NAMES[spec.name]
        warnings.warn(f"{spec.name} is now {new}; the old name goes with the next version", DeprecationWarning, 2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It was executed under its new name, which the import system has just overwritten in its spec."""
        module.__spec__ = module.__spec__ and module.__spec__.loader_state

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m`."""
        spec = find_spec(_NEW_NAMES[name])
        return spec.loader.get_code(spec.name) if spec is not None and spec.loader is not None else None  # type: ignore[attr-defined]


def spec_of(name: str) -> ModuleSpec | None:
    new = find_spec(_NEW_NAMES[name]) if name in _NEW_NAMES else None
    if new is None:
        return None
    return ModuleSpec(name, _Alias(), origin=new.origin)
