"""Ranks near their GPUs, by torch's own functions."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.numa.binding

from rollcall.worker.numa_binding import bind
from tests.rollcall_command import Runner


def in_child(do: Callable[[], object]) -> set[int]:
    """The processors that a process is bound to which has done this."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        do()
        os.write(writer, json.dumps(sorted(os.sched_getaffinity(0))).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader) as answer:
        return set(json.load(answer))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if two GPUs were on the first node of this machine: only where they are is made up. Torch asks whether there
    is a numactl, and does not call it."""
    (tmp_path / "numactl").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.numa.binding, "_get_numa_node_index_for_gpu_index", lambda *, gpu_index: 0)
    monkeypatch.setattr(torch.numa.binding, "_get_gpu_count", lambda: 2)


def test_node_gives_all_processors_of_the_node(two_gpus: None) -> None:
    expected = torch.numa.binding._get_allowed_logical_cpu_indices_for_numa_node(numa_node_index=0)
    assert in_child(lambda: bind("node", 1)) == expected


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor cannot be shared")
def test_exclusive_gives_each_rank_its_own(two_gpus: None) -> None:
    first, second = (in_child(lambda gpu=gpu: bind("exclusive", gpu)) for gpu in (0, 1))  # type: ignore[misc]
    expected = [torch.numa.binding._exclusive_get_logical_cpus_to_bind_to(gpu_index=gpu) for gpu in (0, 1)]
    assert [first, second] == expected


def test_a_rank_that_cannot_be_bound_says_so(rollcall: Runner) -> None:
    """On a machine without a GPU, under torchrun as here."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    rollcall.script("print('never')")
    result = rollcall("run", "-n", 2, "--numa-binding", "node", "script.py")
    assert result.code == 1
    # The first that fails ends the other.
    assert re.search("--numa-binding node cannot bind the rank of GPU [01]", result.err), result.err
    assert "never" not in result.out
