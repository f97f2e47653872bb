"""nccl's own dumps land in the run's folder, where the user has not decided otherwise."""

import os
import threading
import time
from pathlib import Path

import pytest

from rollcall.agent.monitoring.flight_recorder import FlightRecorder
from rollcall.explain.loading.load import load
from tests.rollcall_command import Runner


def test_without_a_gpu_nothing_is_set(tmp_path: Path) -> None:
    assert FlightRecorder(tmp_path, {}, gpus=0).env(0) == {}
    assert list(tmp_path.iterdir()) == []


def test_dumps_go_to_the_folder_of_the_attempt(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path, {}, gpus=1)
    env = recorder.env(3)
    place = tmp_path / "flight-recorder" / "attempt-3"
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == f"{place}/nccl_trace_rank_"
    assert place.is_dir()  # torch does not make it
    assert (env["TORCH_FR_BUFFER_SIZE"], env["TORCH_NCCL_DUMP_ON_TIMEOUT"]) == ("2000", "1")
    recorder.close()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    ],
)
def test_what_the_user_has_set_stays_by_whatever_name(tmp_path: Path, name: str, ours: str) -> None:
    recorder = FlightRecorder(tmp_path, {name: "theirs"}, gpus=1)
    assert ours not in recorder.env(0)
    recorder.close()


def test_a_rank_that_listens_is_asked_and_waited_for(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path, {}, gpus=1)
    env = recorder.env(0)
    dump, pipe = Path(env["TORCH_FR_DUMP_TEMP_FILE"] + "1"), Path(env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "1.pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def answer() -> None:
        while not _read(reader):
            time.sleep(0.01)
        dump.write_bytes(b"dump")

    thread = threading.Thread(target=answer)
    thread.start()
    recorder.ask(0, [0, 1])  # rank 0 has no pipe: it uses no nccl
    thread.join()
    assert dump.read_bytes() == b"dump"
    os.close(reader)
    recorder.close()
    assert not pipe.parent.exists()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 128)
    except BlockingIOError:
        return b""


def test_ranks_without_nccl_are_not_waited_for(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path, {}, gpus=1)
    recorder.env(0)
    began = time.monotonic()
    recorder.ask(0, range(64))
    assert time.monotonic() - began < 4
    recorder.close()


HANGS = """
import os, threading
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

rank = os.environ["RANK"]
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
os.mkfifo(pipe)

def answer():  # as nccl's thread does
    with open(pipe) as asked:
        asked.read()
    dump = _dump_fr_trace(includeStackTraces=False)  # which take seconds
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "wb") as file:
        file.write(dump)

threading.Thread(target=answer, daemon=True).start()
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
if rank == "1":
    dist.recv(torch.ones(3), 0)
dist.all_reduce(torch.ones(3))
"""


def test_when_a_run_hangs_its_ranks_are_asked_and_the_dumps_are_explained(rollcall: Runner) -> None:
    """Gloo's recorder stands in for nccl's: the ranks of a host with a GPU write what they have when they are asked."""
    rollcall.env["CUDA_VISIBLE_DEVICES"] = "0"
    script = rollcall.script(HANGS, name="hangs.py")
    result = rollcall("run", "-n", "2", "--hang-after", "2", "--on-hang", "stop", "--grace", "1", script)
    assert result.code == 124, result.err
    dumps = rollcall.latest() / "flight-recorder" / "attempt-0"
    assert sorted(path.name for path in dumps.iterdir()) == ["nccl_trace_rank_0", "nccl_trace_rank_1"]
    assert [op.op for op in load(dumps).ranks[0].ops] == ["all_reduce", "all_reduce"]
