"""rollcall.spawn: Python functions on ranks."""

import contextlib
import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import rollcall
from rollcall.functions.pool import RankPool
from rollcall.linux import process_group


def add_up(rank: int, start: int) -> int:
    dist.init_process_group("gloo")
    total = torch.tensor([rank + start])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total.item())


def test_values_come_back_in_rank_order() -> None:
    """fn(rank, *args) runs on every rank of one world."""
    assert rollcall.spawn(add_up, 3, args=(10,)) == [33, 33, 33]
    assert rollcall.spawn(lambda rank: rank * rank, 4) == [0, 1, 4, 9]


def test_a_function_that_takes_no_rank_is_called_without_one() -> None:
    """fn(*args) is called, and learns its rank from rollcall.init()."""

    def mine(factor: int) -> int:
        with rollcall.init() as world:
            return factor * world.rank

    assert rollcall.spawn(mine, 3, args=(5,)) == [0, 5, 10]


def test_the_first_ranks_own_exception_is_raised() -> None:
    """It has its own type and message, and its traceback as a note; the other ranks are ended, not waited for."""

    def fail(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 2:
            raise KeyError("the first failure")
        dist.barrier()
        time.sleep(60)

    with pytest.raises(KeyError, match="the first failure") as caught:
        rollcall.spawn(fail, 4)
    (note,) = caught.value.__notes__
    assert "On rank 2 of 4" in note
    assert "in fail" in note
    assert "functions/worker.py" not in note


def test_an_exception_that_cannot_be_pickled_is_described() -> None:
    """A lock inside an exception does not hide the exception."""

    def fail() -> None:
        import threading

        raise ValueError("with a lock", threading.Lock())

    with pytest.raises(rollcall.RankError, match="rank 0 raised ValueError"):
        rollcall.spawn(fail, 1)


def test_a_killed_rank_is_an_error_that_names_the_signal() -> None:
    """A killed rank raises no exception: the error names its signal."""

    def die(rank: int) -> None:
        if rank == 1:
            os.kill(os.getpid(), 9)
        time.sleep(60)

    with pytest.raises(rollcall.RankError, match="rank 1 was killed by SIGKILL"):
        rollcall.spawn(die, 2)


def test_a_hang_ends_with_stacks() -> None:
    """After timeout_s each rank that still runs shows where it is."""

    def hang(rank: int) -> None:
        if rank:
            time.sleep(60)

    with pytest.raises(rollcall.RankError, match="1 of 2 ranks were still running after 1 s") as caught:
        rollcall.spawn(hang, 2, timeout_s=1)
    assert "in hang" in caught.value.__notes__[0]


def test_sys_exit_in_a_rank_is_its_exit() -> None:
    """A SystemExit in a rank is raised here as SystemExit."""
    with pytest.raises(SystemExit):
        rollcall.spawn(lambda: sys.exit(3), 2)


def test_the_callers_environment_and_folder_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have the environment and folder that the caller has now, not those of when the server started."""
    rollcall.spawn(os.getpid, 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOMETHING", "new")
    assert rollcall.spawn(lambda: (os.getcwd(), os.environ["SOMETHING"]), 1) == [(str(tmp_path), "new")]


def test_ranks_have_their_own_random_numbers() -> None:
    """Forks of one server do not repeat each other."""

    def draw() -> tuple[float, float, float]:
        import random

        import numpy as np

        return random.random(), float(np.random.random()), torch.rand(1).item()

    drawn = rollcall.spawn(draw, 3) + rollcall.spawn(draw, 3)
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 6


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_a_wrong_number_of_ranks_is_refused(count: int) -> None:
    """The error says how many can start."""
    with pytest.raises(rollcall.UsageError, match="1 to 4096"):
        rollcall.spawn(add_up, count)


MAIN = """
import rollcall
class Thing:
    def __init__(self, rank): self.rank = rank
def make(rank): return Thing(rank)
if __name__ == "__main__":
    things = rollcall.spawn(make, 2)
    print([t.rank for t in things], all(isinstance(t, Thing) for t in things))
"""


@pytest.mark.parametrize("how", ["script", "stdin"])
def test_functions_of_main_work(tmp_path: Path, how: str) -> None:
    """A function and a class of __main__, from a script or typed into a prompt, go to the ranks and back."""
    (tmp_path / "s.py").write_text(MAIN)
    words, text = (["s.py"], None) if how == "script" else (["-"], MAIN)
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, "ROLLCALL_WARM": "0"},  # a server of the developer's own would be named on stderr
        input=text,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.stdout == "[0, 1] True\n", ran.stderr
    assert ran.stderr == ""


def test_the_server_dies_with_its_caller(tmp_path: Path) -> None:
    """kill -9 of a script in the middle of a spawn leaves no server and no rank."""
    (tmp_path / "s.py").write_text(
        "import os, time, rollcall\n"
        "def f(rank):\n    open(f'ok.{rank}', 'w').close()\n    time.sleep(60)\n"
        "rollcall.spawn(f, 2)\n"
    )
    process = subprocess.Popen([sys.executable, "s.py"], cwd=tmp_path)
    deadline = time.monotonic() + 30
    while not all((tmp_path / f"ok.{r}").exists() for r in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    descendants = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(descendants, timeout=180)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert len(gone) >= 3


def wait_for_each_other(rank: int, folder: Path) -> None:
    """Rank 0 waits for ever, and rank 1 until rank 0 is gone: a neighbour in a group notices that at once."""
    (folder / f"writes-{rank}").write_text(str(os.getpid()))
    (folder / f"writes-{rank}").rename(folder / f"pid-{rank}")
    while rank == 0 or not (folder / "pid-0").exists():
        time.sleep(0.01)
    psutil.Process(int((folder / "pid-0").read_text())).wait()
    raise ConnectionError("connection closed by peer")


def test_an_error_about_a_rank_that_was_ended_is_no_error_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that hang are ended one after the other, and those that come later may fail of it."""
    kill = process_group.send

    def kill_slowly(pid: int, number: int) -> None:
        kill(pid, number)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(int((tmp_path / "pid-1").read_text())).wait(timeout=60)

    monkeypatch.setattr("rollcall.functions.pool.process_group.send", kill_slowly)
    have_begun = [(tmp_path / f"pid-{rank}").exists for rank in range(2)]
    with contextlib.closing(RankPool()) as pool:
        results = pool.call(
            functools.partial(wait_for_each_other, folder=tmp_path),
            2,
            is_stuck=lambda: all(each() for each in have_begun),
        )
    assert [(result.exit_code, result.failed) for result in results] == [(None, False)] * 2
