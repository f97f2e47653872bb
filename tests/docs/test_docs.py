"""What the documentation names exists: links, commands, options, files, modules, make targets."""

import re
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from rollcall.cli.app import app

from .pages import PAGES, REPOSITORY, Page, anchor

SOURCES = REPOSITORY / "src"
TARGETS = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
_OPTION = re.compile(r"--[a-z][\w-]*")
_FILE = re.compile(r"(?:src/rollcall|tests|benchmarks|tools|examples)/[\w./*-]*")
_MODULE = re.compile(r"rollcall(?:\.\w+)+")
# Options of sbatch and srun.
OF_OTHERS = {"--no-kill", "--array", "--clusters", "--wait", "--ntasks", "--ntasks-per-node"}

ROLLCALL = typer.main.get_command(app)
assert isinstance(ROLLCALL, TyperGroup)
COMMANDS = ROLLCALL.commands
# The base of all complaints about a command line. Its own name depends on the version of typer.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

each_page = pytest.mark.parametrize(
    "page", [Page(path) for path in PAGES], ids=[str(path.relative_to(REPOSITORY)) for path in PAGES]
)


@each_page
def test_links_lead_to_files_and_headings(page: Page) -> None:
    """Every relative link names a file, and every anchor a heading of it."""
    assert [target for target in page.links if not _resolves(page, target)] == []


@each_page
def test_commands_are_understood(page: Page) -> None:
    """Every `rollcall …` that a page shows is a command with options that it has. A sentence may leave the rest out."""
    typed = [_problem(words) for words in page.typed("rollcall")]
    mentioned = [_problem(words, is_whole=False) for words in page.mentioned("rollcall")]
    assert [problem for problem in typed + mentioned if problem] == []


@each_page
def test_options_exist(page: Page) -> None:
    """Every option that is named by itself belongs to some command of rollcall."""
    named = {_OPTION.match(span).group() for span in page.spans if _OPTION.match(span)}  # type: ignore[union-attr]
    assert named - _all_options() - OF_OTHERS == set()


@each_page
def test_files_exist(page: Page) -> None:
    """Every file or folder of the repository that is named in code is there."""
    named = {name for span in page.spans for name in _FILE.findall(span)}
    assert {name for name in named if not any(REPOSITORY.glob(name))} == set()


@each_page
def test_modules_can_be_run(page: Page) -> None:
    """Every module after `python -m` is a file, or a folder with a __main__."""
    calls = [words for words in page.typed("python") + page.mentioned("python") if words[0] == "-m" and words[1:]]
    named = {words[1] for words in calls if _MODULE.fullmatch(words[1])}
    assert {name for name in named if not _can_be_run(name)} == set()


@each_page
def test_make_targets_exist(page: Page) -> None:
    """Every target after `make` is in the Makefile."""
    named = {words[0] for words in page.typed("make") + page.mentioned("make")}
    assert named - TARGETS == set()


def test_the_architecture_names_every_folder() -> None:
    """The table has a row for each folder of the sources, which names the folders inside; modules beside them are
    named, too. Each file and folder of the sources that the page names exists."""
    text = Page(REPOSITORY / "docs/architecture.md").text
    rows = dict(re.findall(r"^\| `(\w+)/` \| (.*)$", text, re.MULTILINE))
    package = SOURCES / "rollcall"
    assert set(rows) == {path.parent.name for path in package.glob("*/__init__.py")}
    inside = [path.parent.relative_to(package).parts for path in package.glob("*/*/__init__.py")]
    assert [parts for parts in inside if f"{parts[1]}/`" not in rows[parts[0]]] == []
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert [name for name in modules if f"`{name}`" not in text] == []
    named = re.findall(r"`(?!src/|tests/)((?:\w+/)+(?:\w+\.py)?)`", text)
    assert [name for name in named if not any(package.glob(f"**/{name}"))] == []


def test_anchors_are_those_of_github() -> None:
    """Letters, digits and dashes stay; spaces become dashes; everything else goes."""
    assert anchor("Two machines, by hand") == "two-machines-by-hand"
    assert anchor("`rollcall run`: how it ends?") == "rollcall-run-how-it-ends"


def test_a_wrong_command_is_noticed() -> None:
    """An unknown subcommand, an unknown option and a missing argument are each a problem."""
    assert _problem(["no-such-command"])
    assert _problem(["run", "--no-such-option", "train.py"])
    assert _problem(["run"])
    assert not _problem(["run", "-n", "4", "train.py", "--an-option-of-train.py"])


def _resolves(page: Page, target: str) -> bool:
    name, _, fragment = target.partition("#")
    path = (page.path.parent / name).resolve() if name else page.path
    return path.exists() and (not fragment or fragment in Page(path).anchors)


def _problem(words: list[str], is_whole: bool = True) -> str:
    """What is wrong with a command line; empty if nothing is. Nothing is run."""
    if words[0] in ("--help", "-h"):
        return ""
    command = COMMANDS.get(words[0])
    if command is None:
        return f"there is no command {words[0]}"
    try:
        command.make_context(words[0], [word for word in words[1:] if word != "--help"])
    except UsageError as error:
        if not is_whole and type(error).__name__ == "MissingParameter":
            return ""
        return f"{' '.join(words)}: {error}"
    return ""


def _all_options() -> set[str]:
    parameters = [parameter for command in COMMANDS.values() for parameter in command.params]
    return {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}


def _can_be_run(module: str) -> bool:
    path = SOURCES / Path(*module.split("."))
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()
