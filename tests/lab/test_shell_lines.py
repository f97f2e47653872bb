"""The lines of each page that are typed in `rollcall shell` run, on one shell with four ranks."""

import os
import re
from pathlib import Path

import pytest

from rollcall.lab import EXPERIMENTS
from rollcall.shell import ranks as shell_ranks
from rollcall.shell.options import ShellOptions

PAGES = Path(__file__).parents[2] / "docs" / "lab"
SECTION = re.compile(r"^## In the shell$(.*)\Z", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
NEEDS_OTHERS = ("hosts",)  # its shell has virtual hosts


def section(name: str) -> str:
    found = SECTION.search((PAGES / f"{name}.md").read_text())
    assert found, f"docs/lab/{name}.md does not end with lines for the shell"
    return found[1]


def lines_of(name: str) -> list[str]:
    """As they are typed: a line that goes on ends with an empty one."""
    typed: list[str] = []
    for line in "".join(BLOCK.findall(section(name))).splitlines():
        if typed and (line.startswith(" ") or not line):
            typed[-1] += f"\n{line}"
        else:
            typed.append(line)
    return [line.rstrip() for line in typed]


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_page_ends_with_lines_to_type(name: str) -> None:
    assert "```" in section(name)


def run_all(ranks: shell_ranks.Ranks) -> None:
    number = 0
    for name in EXPERIMENTS:
        ranks.ask("reset", list(ranks.all))
        for line in lines_of(name) if name not in NEEDS_OTHERS else ():
            number += 1
            if line != "%explain":
                ranks.run(line.removeprefix("%time "), list(ranks.all), number)
                errors = {rank.number: rank.errors for rank in ranks.all.values() if rank.errors}
                assert not errors, f"{name}: {line}{os.linesep}{errors}"


def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an error on any rank; each page begins with no variables."""
    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path / ".rollcall"))
    monkeypatch.setenv("ROLLCALL_WARM", "0")
    with shell_ranks.started(ShellOptions(4)) as (ranks, _):
        run_all(ranks)
        assert ranks.end() == 0
    out = capsys.readouterr().out
    assert {"tensor([2.5000])", "tensor([6.])", "tensor([1.])", "tensor([5.])"} <= set(re.findall(r"│ (.*)", out))
