"""Plans: pure values."""

import contextlib
import json
import os
import shlex
from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.protocol.exit_codes import how_it_ended, shell_code
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import ByHand, Plan, Program, Show, Transport, check, describe


def plan(**changes: object) -> Plan:
    made: dict[str, object] = {
        "program": Program("module", "m", ("a b",)),
        "hosts": (Host("this host", 2),),
        "cwd": "/",
    }
    return Plan(**{**made, **changes})  # type: ignore[arg-type]


def test_a_plan_survives_json() -> None:
    """The agent gets exactly the plan that the launcher made."""
    made = plan(preload=("x",), show=Show((0, 1), None, ((-1, 2),), ((0, 1),)), by_hand=ByHand(2), timeout_s=1.5)
    assert Plan.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_describe_gives_a_command_for_every_rank_of_every_host() -> None:
    """Six ranks on two hosts: six lines to type, each with its own rank, grouped by host."""
    text = describe(plan(hosts=(Host("this host", 3),), by_hand=ByHand(2, 0), master_addr="10.0.0.1"))
    lines = [line for line in text.splitlines() if line.startswith("MASTER_ADDR=10.0.0.1")]
    assert [f"RANK={rank}" in line.split() for rank, line in enumerate(lines)] == [True] * 6
    assert [line.split()[4] for line in lines] == [f"LOCAL_RANK={n}" for n in (0, 1, 2, 0, 1, 2)]
    assert shlex.split(lines[0])[-3:] == ["m", "a b", "&"]
    assert text.count("without rollcall:") == 2


def test_spares_have_no_ranks_in_the_plan() -> None:
    hosts = tuple(Host(name, 2) for name in "abc")
    made = check(plan(hosts=hosts, transport=Transport("ssh", spares=1)))
    assert made.world_size == 4
    assert "spares: c" in describe(made)
    assert "# on c" not in describe(made)


@pytest.mark.parametrize(
    ("slots", "settings", "why"),
    [
        ((2, 2), {"spares": 2}, "--spares 2 of 2 hosts leaves no host to run on"),
        ((2, 2), {"spares": -1}, "is below zero"),
        ((2, 4), {"spares": 1}, "they have 2, 4 slots: give all the same number, such as 4"),
        ((2, 2), {"spares": 1, "min_hosts": 2}, "at least 2 hosts are asked for, but 1 are named without the spares"),
    ],
)
def test_spares_that_cannot_work_are_refused(slots: tuple[int, ...], settings: dict[str, int], why: str) -> None:
    hosts = tuple(Host(f"h{number}", each) for number, each in enumerate(slots))
    with pytest.raises(UsageError, match=why):
        check(plan(hosts=hosts, transport=Transport("ssh", **settings)))  # type: ignore[arg-type]


@pytest.mark.parametrize("script", ["pipe", "/dev/stdin", "-"])
def test_a_script_that_only_one_rank_could_read_is_refused(tmp_path: Path, script: str) -> None:
    """Read here, nothing would be left of it for the ranks, which would do nothing and be well."""
    os.mkfifo(tmp_path / "pipe")
    reader, writer = os.pipe()
    with contextlib.ExitStack() as undo:
        undo.callback(os.dup2, os.dup(0), 0)
        os.dup2(reader, 0)
        os.write(writer, b"print(1)")
        with pytest.raises(UsageError, match=r"ranks cannot all read.*: write"):
            check(plan(program=Program("script", script), cwd=str(tmp_path)))


def test_an_empty_script_is_python(tmp_path: Path) -> None:
    """An empty file, a byte-order mark and an encoding line are fine."""
    for text in (b"", "\ufeffprint('ü')".encode(), "# coding: latin-1\nx = 'ü'".encode("latin-1")):
        (tmp_path / "s.py").write_bytes(text)
        check(plan(program=Program("script", "s.py"), cwd=str(tmp_path)))


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    """The line is named before any rank starts."""
    (tmp_path / "s.py").write_text("x = 1\nif x\n")
    with pytest.raises(UsageError, match=r"s.py line 2 is not Python \(expected ':'\)"):
        check(plan(program=Program("script", "s.py"), cwd=str(tmp_path)))


@pytest.mark.parametrize(
    ("code", "words", "shell"),
    [
        (3, "exited with code 3", 3),
        (-9, "was killed by SIGKILL: often the out-of-memory killer", 137),
        (-11, "was killed by SIGSEGV: a crash in native code", 139),
        (-7, "was killed by SIGBUS: often a full /dev/shm", 135),
        (-40, "was killed by signal 40", 168),
    ],
)
def test_exit_codes_in_words(code: int, words: str, shell: int) -> None:
    """A rank's end is told in words, and a signal becomes 128 + its number."""
    assert how_it_ended(code) == words
    assert shell_code(code) == shell
