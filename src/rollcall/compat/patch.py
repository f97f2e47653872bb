"""What one patch, or one use of private names, is for, and whether it works with the installed versions."""

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SWITCH = "ROLLCALL_COMPAT"  # -NAME leaves a patch out: ROLLCALL_COMPAT=-gloo_listener,-torch_dns
_MENTIONED = re.compile(r"(.+)<(\w+)>")


@dataclass(frozen=True)
class Patch:
    """`uses` are the private names that it relies on: "module:attribute.attribute", or "module:function<name>" for an
    attribute that only exists on instances: the code of the function mentions it."""

    name: str
    purpose: str
    lost_without: str
    uses: tuple[str, ...] = ()
    tried_on: tuple[str, ...] = ("torch 2.9 to 2.15",)
    can_be_left_out: bool = False
    works: Callable[[], str] = lambda: ""  # "" or why not, beyond the names

    def is_off(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Whether the user leaves it out."""
        return self.can_be_left_out and f"-{self.name}" in environ.get(SWITCH, "").replace(" ", "").split(",")

    def check(self) -> str:
        """Empty, or why it does not work here."""
        missing = [use for use in self.uses if not exists(use)]
        return f"there is no {', '.join(missing)}" if missing else self.works()


def exists(use: str) -> bool:
    """Whether a private name is there."""
    mentioned = _MENTIONED.fullmatch(use)
    try:
        found = _resolve(mentioned[1] if mentioned else use)
    except (ImportError, AttributeError):
        return False
    return mentioned is None or mentioned[2] in inspect.unwrap(found).__code__.co_names  # type: ignore[arg-type]


def _resolve(use: str) -> object:
    module, _, attributes = use.partition(":")
    return functools.reduce(getattr, filter(None, attributes.split(".")), importlib.import_module(module))
