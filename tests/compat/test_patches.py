"""The table of patches and private names is complete, and each entry says what it finds here."""

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollcall
from rollcall import native
from rollcall.compat.patch import Patch
from rollcall.compat.patches import PATCHES, rows
from rollcall.torch_version import is_older, torch_version
from tests.rollcall_command import Runner
from tests.said import said

SOURCE = Path(rollcall.__file__).parent
# Documented by Python, in spite of their names.
DOCUMENTED = {"_exit", "_asdict", "_replace", "_fields", "_thread"}


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_each_check_finds_what_it_needs(patch: Patch) -> None:
    """With the installed torch, Python and pytest; or it says that a torch older than those that it was tried on has
    nothing for it."""
    if patch.name == "gloo_listener" and not all(map(native.find, native.SOURCES)):
        pytest.skip("needs `python -m rollcall.native`, which compiles it")
    first = re.match(r"torch (\d+)\.(\d+)", patch.tried_on[0])
    is_before = first is not None and is_older(torch_version(), (int(first[1]), int(first[2])))
    assert patch.check() == "" or (is_before and patch.check().startswith("there is no "))


@pytest.mark.parametrize(
    "use",
    ["torch:_no_such_name", "torch._no_such_module:x", "os:kill.no_attribute", "threading:Thread.__init__<_no_such>"],
)
def test_a_missing_name_is_said(use: str) -> None:
    """By its full name."""
    assert Patch("example", "", "", uses=("os:_exit", use)).check() == f"there is no {use}"


def test_names_are_unique_and_entries_are_complete() -> None:
    """Every entry has a purpose, what is lost without it, and versions."""
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)
    assert all(patch.purpose and patch.lost_without and patch.tried_on for patch in PATCHES)


def test_a_patch_that_is_left_out_is_off() -> None:
    """Those that rollcall cannot do without stay."""
    states = {row.name: row.state for row in rows({"ROLLCALL_COMPAT": "-gloo_exit, -torch_dns,-elastic_agent"})}
    assert [name for name, state in states.items() if state == "off"] == ["gloo_exit", "torch_dns"]


def test_every_private_name_of_others_has_an_entry() -> None:
    """Attributes that begin with an underscore, of imported modules or that no code of ours defines."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    ours = {name for tree in trees.values() for name in _defined(tree)}
    named = " ".join(use for patch in PATCHES for use in patch.uses)
    used = {(path.relative_to(SOURCE), name) for path, tree in trees.items() for name in _foreign(tree, ours)}
    assert sorted((str(path), name) for path, name in used if name not in named) == []


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _root(node) in ("self", "cls"):
            yield node.attr


def _foreign(tree: ast.Module, ours: set[str]) -> Iterator[str]:
    """Private names of others that a file uses."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {(name.asname or name.name).partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("rollcall"):
            modules |= {name.asname or name.name for name in node.names}
            yield from filter(_is_private, [*node.module.split("."), *(name.name for name in node.names)])
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and _is_private(node.attr)
            and (_root(node) in modules - {"rollcall"} or node.attr not in ours)
        ):
            yield node.attr


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_the_doctor_prints_the_table(rollcall: Runner) -> None:
    """For this machine: the state of each patch, and the hooks of the recorder that found no place."""
    rollcall.env["ROLLCALL_COMPAT"] = "-torch_dns"
    ran = rollcall("doctor", "--json")
    printed = json.loads(ran.out)
    assert printed["hooks"]["missing"] == []
    found = {row["name"]: row for row in printed["compat"]}
    assert list(found) == [patch.name for patch in PATCHES]
    assert (found["torch_dns"]["state"], found["gloo_exit"]["state"]) == ("off", "ok")


HOOKED = """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
def wrappers(function):
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        yield function.__code__.co_filename.rpartition("/")[2]
        function = inner
hooked = [dist.ProcessGroup.broadcast, DistributedDataParallel.forward]
settles = "gloo_exit.py" in wrappers(dist.destroy_process_group)
print([*(hasattr(each, "__wrapped__") for each in hooked), settles])
"""


@pytest.mark.parametrize(
    ("switch", "expected"),
    [("-record_ddp", [True, False, True]), ("-gloo_exit", [True, True, False])],
)
def test_a_patch_that_is_left_out_is_not_installed(rollcall: Runner, switch: str, expected: list[bool]) -> None:
    """In ranks, which get the variable as they get all others."""
    rollcall.env["ROLLCALL_COMPAT"] = switch
    rollcall.script(HOOKED)
    ran = rollcall("run", "-n", 2, "script.py")
    assert (ran.code, said(ran.out)) == (0, {str(expected): [0, 1]}), ran.err


def test_rows_are_values() -> None:
    """They are printed as JSON."""
    assert all(isinstance(value, str) for row in rows({}) for value in dataclasses.asdict(row).values())
