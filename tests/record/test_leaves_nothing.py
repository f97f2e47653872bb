"""What recording leaves behind: no thread, no open file, no process; and on a full disk, no harm."""

import os
import re
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.explain.loading.load import load
from rollcall.record.ring import Ring
from tests.record.recorded import run_recorded
from tests.rollcall_command import Runner

# A process group again and again. What torch itself keeps of the first one is not counted.
CYCLES = """\
import os, threading, torch, torch.distributed as dist

def count():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), threading.active_count()

def use_a_group(number):
    store = os.path.abspath("store-" + os.environ["MASTER_PORT"])  # of this run
    dist.init_process_group("gloo", init_method=f"file://{store}-{number}", rank=int(os.environ["RANK"]), world_size=2)
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    return count()

before = count()
first, *later = [use_a_group(number) for number in range(4)]
print("grown by", [after - began for began, after in zip(before, first)], "then by",
      [last - began for began, last in zip(first, later[-1])])
"""


def test_no_thread_or_file_stays_open(runner: Runner) -> None:
    """One thread, the sampler's, comes with the first group and stays; nothing comes with later groups."""
    bare = run_recorded(runner, CYCLES, is_recorded=False)
    recorded = run_recorded(runner, CYCLES)
    for torchs, with_ours in zip(bare, recorded, strict=True):
        threads, files, known = map(int, torchs.out[len("grown by [") : torchs.out.index("]")].split(", "))
        assert with_ours.out == f"grown by [{threads + 1}, {files}, {known}] then by [0, 0, 0]\n"
    assert sorted(path.name for path in (runner.latest() / "rings/attempt-0").iterdir()) == [
        *(f"rank-{rank}.{kind}" for rank in (0, 1) for kind in ("ring", "stacks")),
        "sources",
    ]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    if os.geteuid():
        pytest.skip("needs root, to mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a disk here: {mounted.stderr}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


FILLS = """\
import torch, torch.distributed as dist
import rollcall
dist.init_process_group("gloo")
total = torch.ones(2)
for number in range(10_000):
    with rollcall.phase("fill"):
        pass
    if number % 100 == 0:
        dist.all_reduce(total)
        total /= 2
print("total", total.tolist())
"""


def test_a_full_disk_ends_the_recording_not_the_run(runner: Runner, small_disk: Path) -> None:
    """Rings are mapped into memory, where a write without room would kill the rank. One line says it; explain, too."""
    runner.folder = small_disk
    line = r"recording stopped in [\w +]+: OSError: \[Errno 28\] No space left on device; the program continues"
    for rank in run_recorded(runner, FILLS):
        assert rank.out == "total [1.0, 1.0]\n"
        assert re.fullmatch(f"rollcall: {line}\n", rank.err)
    problems = load(runner.latest().resolve()).problems
    assert problems
    assert all(re.search(r"No space left on device; what \w+ did then is not known", problem) for problem in problems)


def test_a_ring_that_has_no_room_leaves_no_file(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes((1 << 20) - (16 << 10)))
    with pytest.raises(OSError, match="No space left on device"):
        Ring(small_disk / "rank-0.ring", rank=0, world_size=1, attempt=0, host="here")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


LIMITED = """\
import resource, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
total = torch.ones(2)
for _ in range(1000):
    dist.all_reduce(total)
    total /= 2
print("total", total.tolist())
"""


def test_a_limit_on_files_ends_the_recording_not_the_run(runner: Runner) -> None:
    """A write beyond the limit sends a signal, of which a program dies that has reset its handler."""
    for rank in run_recorded(runner, LIMITED):
        assert rank.out == "total [1.0, 1.0]\n"
        assert rank.err == (
            "rollcall: recording stopped in all_reduce: OSError: [Errno 27] File too large; the program continues\n"
        )


def test_a_ring_beyond_the_limit_on_files_leaves_no_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Ring(tmp_path / "rank-0.ring", rank=0, world_size=1, attempt=0, host="here")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
