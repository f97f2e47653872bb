"""The layout of the source: what a reader who opens a folder relies on."""

import ast
import re
from collections import Counter
from pathlib import Path

import grimp
import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rollcall"
FOLDERS = [init.parent for init in sorted(SOURCE.rglob("__init__.py")) if init.parent != SOURCE]
# About a dozen: with more, a list of files is no longer read at one glance.
MOST_FILES = 15
# Words that once stood for launcher, agent, worker and the like, and that a stranger has to look up.
METAPHORS = {
    "ear", "crew", "keeper", "callee", "mute", "presence", "guided", "tails", "pen", "door", "stillness", "shelf",
    "pulse", "told", "wishes", "strangers", "lonely",
}  # fmt: skip


def docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""


def contents(folder: Path) -> list[str]:
    modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    headers = [path.name for path in folder.glob("*.h")]
    return modules + headers + [path.parent.name for path in folder.glob("*/__init__.py")]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(SOURCE)))
def test_a_folder_says_what_is_in_it(folder: Path) -> None:
    """Its docstring has a line for each file, unless all files are of one sort and it says of which."""
    text = docstring(folder)
    assert text.split("\n")[0].rstrip(".:")
    unnamed = [name for name in contents(folder) if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    assert not unnamed or "one entry per file" in text or "experiments" in folder.parts


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(SOURCE)))
def test_a_folder_is_seen_at_one_glance(folder: Path) -> None:
    assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= MOST_FILES


def test_names_are_ordinary_words() -> None:
    used = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        for name in [path.stem, *_defined(path)]
        if METAPHORS & set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))
    }
    assert not used


def test_a_class_name_is_one_idea() -> None:
    """No two modules define a public class of the same name."""
    count = Counter(name for path in SOURCE.rglob("*.py") for name in _defined(path, (ast.ClassDef,)))
    assert not [name for name, times in count.items() if times > 1 and not name.startswith("_")]


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Nor by an import inside a function: such an import saves start time, and hides no cycle."""
    graph = grimp.build_graph("rollcall", exclude_type_checking_imports=True, cache_dir=None)
    cycles = {
        frozenset((one, other))
        for one in graph.modules
        for other in graph.find_modules_directly_imported_by(one)
        if one in graph.find_upstream_modules(other)
    }
    assert not cycles


def _defined(path: Path, kinds: tuple[type, ...] = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
