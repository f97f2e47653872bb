"""Modules that have moved: the old name still imports, with a DeprecationWarning. To be removed in the next version.

Each old name is a small module in sys.modules. A finder in sys.meta_path would do the same, but a rank is forked from a
process that has imported rollcall, and a program there must find Python's import system unchanged.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

_MOVED = {
    "attendance": "initialization.roll_call",
    "env": "initialization.environment",
    "explain.load": "explain.loading.load",
    "explain.rings": "explain.loading.rings",
    "explain.show": "explain.terminal",
    "explain.table": "explain.loading.table",
    "group": "initialization.process_group",
    "hostlist": "protocol.host_list",
    "record.layout": "record.ring_format",
    "report.live": "live.reader",
    "report.watch": "live.terminal",
    "report.web": "live.server",
    "stores": "initialization.stores",
    "train.early": "train.early_stopping",
    "train.recipe": "train.recipes.config",
    "train.snapshot": "train.checkpoint.snapshot",
    "train.state": "train.checkpoint.state",
}

_EXPERIMENTS = {
    "messages": ("send", "isend", "deadlock"),
    "collective": ("barrier", "collectives", "groups", "ring", "mismatch"),
    "training": ("gradients", "overlap", "straggler", "scaling"),
    "machine": ("hello", "backends", "bandwidth", "hosts"),
}
_NEW_NAMES = {
    **{f"rollcall.{old}": f"rollcall.{new}" for old, new in _MOVED.items()},
    **{
        f"rollcall.lab.{name}": f"rollcall.lab.experiments.{folder}.{name}"
        for folder, names in _EXPERIMENTS.items()
        for name in names
    },
}

# Experiments can no longer be run as modules.
_RUN_EXPERIMENT = "import sys, rollcall.__main__ as cli; sys.argv[1:1] = ['lab', '{}']; cli.main()"


class _Renamed(ModuleType):
    """Forwards to the module of the new name, and imports it at the first use."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # read by code that walks through sys.modules, not by users of the module
            raise AttributeError(name)
        import warnings  # here: it would delay every start

        new = _NEW_NAMES[self.__name__]
        warnings.warn(f"{self.__name__} is now {new}; the old name goes with the next version", DeprecationWarning, 2)
        return getattr(import_module(new), name)


class _NewCode:
    """A loader for `python -m OLD.NAME`, which asks for code only."""

    @staticmethod
    def get_code(name: str) -> CodeType | None:
        if name.startswith("rollcall.lab."):
            return compile(_RUN_EXPERIMENT.format(name.rpartition(".")[2]), name, "exec")
        spec = import_module("importlib.util").find_spec(_NEW_NAMES[name])
        code: CodeType | None = spec.loader.get_code(spec.name)
        return code


def install() -> None:
    here = __file__.rpartition("/")[0]
    for old, new in _NEW_NAMES.items():
        stand_in = sys.modules[old] = _Renamed(old)
        origin = f"{here}/{new.partition('.')[2].replace('.', '/')}.py"
        stand_in.__spec__ = ModuleSpec(old, _NewCode, origin=origin)  # type: ignore[arg-type]
