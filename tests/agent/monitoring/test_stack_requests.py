"""A rank is asked for its stacks by a signal only while its main thread runs no Python code: it could crash."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.agent.monitoring import stack_requests
from tests.rollcall_command import Runner, until

# Does what is written to the file `next`.
PROGRAM = """\
import os, re, time, torch.distributed as dist
dist.init_process_group("gloo")
open("ready", "w").close()

def compute():
    while not os.path.exists("next"):
        sum(range(100))

def sleep():
    time.sleep(600)

def match():
    re.match("(a+)+$", "a" * 64 + "b")  # takes years, and keeps Python's lock

compute()
{"sleep": sleep, "match": match}[open("next").read()]()
"""
BY_THREAD, BY_SIGNAL = "Current thread", "Stack (most recent call first)"


@pytest.fixture
def rank(warm_rollcall: Runner, request: pytest.FixtureRequest) -> Iterator[tuple[dict[int, Path], Path]]:
    """A rank that computes, or does what the test says: its ring, by process, and the file that tells it what to do."""
    if word := getattr(request, "param", ""):
        (warm_rollcall.folder / "next").write_text(word)
    run = warm_rollcall.start("run", "-n", 1, warm_rollcall.script(PROGRAM))
    assert until((warm_rollcall.folder / "ready").exists), run.communicate()
    yield stack_requests.find_rings(warm_rollcall.latest(), 0), warm_rollcall.folder / "next"
    run.terminate()
    run.communicate()


def written(rings: dict[int, Path]) -> str:
    (ring,) = rings.values()
    stacks = ring.with_suffix(".stacks")
    text = stacks.read_text()
    stacks.write_text("")
    return text


def tell(file: Path, word: str) -> None:
    """Make the rank do this next, and give it the time to begin."""
    part = file.with_suffix(".part")
    part.write_text(word)
    part.rename(file)
    time.sleep(0.5)


def test_a_rank_that_computes_gets_no_signal(rank: tuple[dict[int, Path], Path]) -> None:
    """Its own thread writes the stacks. Before its end it is not waited for. Once it sleeps, the signal is safe."""
    rings, file = rank
    stack_requests.ask(rings)
    text = written(rings)
    assert BY_THREAD in text
    assert "in compute" in text
    assert BY_SIGNAL not in text
    stack_requests.ask_before_end(rings)
    assert written(rings) == ""
    tell(file, "sleep")
    stack_requests.ask_before_end(rings)
    text = written(rings)
    assert BY_SIGNAL in text
    assert "in sleep" in text


@pytest.mark.parametrize("rank", ["match"], indirect=True)
def test_a_rank_that_keeps_the_lock_of_python_gets_a_signal(rank: tuple[dict[int, Path], Path]) -> None:
    """No thread of it can write the stacks, and its main thread runs no Python code. It does so right after init."""
    rings, _ = rank
    stack_requests.ask(rings)
    text = written(rings)
    assert BY_SIGNAL in text
    assert "in match" in text
