"""GPUs are looked at while ranks run; NCCL's own service is asked when they stand still."""

import socketserver
import threading
from pathlib import Path

import pytest

from rollcall.agent.health.nvml import LIBRARY, Nvml
from rollcall.agent.monitoring import nccl_ras
from rollcall.agent.monitoring.gpu_samples import GpuSamples, visible
from tests.agent.health.fake_nvml import build
from tests.rollcall_command import Runner

PROGRAM = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(1)
with open("pids", "a") as file:
    file.write(f"{rank} {os.getpid()}\\n")
dist.barrier()
time.sleep(2.5)  # the GPUs are looked at once a second
if rank == 1:
    open("fault", "w").write("off-bus")
    time.sleep(60)
dist.all_reduce(x)
"""


def test_a_gpu_that_is_lost_during_a_run_is_the_verdict(rollcall: Runner, tmp_path: Path) -> None:
    rollcall.script(PROGRAM)
    rollcall.env |= {
        LIBRARY: str(build(tmp_path)),
        "FAKE_NVML": f"@{rollcall.folder / 'fault'}",
        "FAKE_NVML_PIDS": str(rollcall.folder / "pids"),
    }
    ran = rollcall("run", "-n", "2", "--hang-after", "4", "--on-hang", "stop", "script.py")
    assert ran.code == 124, ran.err
    assert "verdict: gpu-lost — look at rank 1" in ran.err
    assert "is lost: it has fallen off the bus" in ran.err


def test_a_sample_tells_what_a_gpu_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each Xid once."""
    monkeypatch.setenv("FAKE_NVML", "xid")
    nvml = Nvml({LIBRARY: str(build(tmp_path))})
    first = {
        "utilisation": 97,
        "sm_mhz": 300,
        "throttled": [],
        "uncorrected_errors": 0,
        "pids": [],
        "memory_bytes": 20 << 30,
    }
    assert nvml.sample() == [{"index": 0, **first, "xids": []}, {"index": 1, **first, "xids": [48]}]
    assert [gpu["xids"] for gpu in nvml.sample()] == [[], []]


def test_nothing_is_noted_where_there_is_no_nvml(tmp_path: Path) -> None:
    samples = GpuSamples({LIBRARY: "/nowhere/libnvidia-ml.so.1"})
    samples.begin(tmp_path / "rings")
    samples.end()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "numbers"), [("3,1", [3, 1]), ("", None), ("GPU-5a", None)])
def test_visible_gpus_have_numbers_or_are_not_understood(words: str, numbers: list[int] | None) -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": words}) == numbers


class Ras(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        asked = self.rfile.readline()
        self.wfile.write(b"NCCL version 2.27\n" if asked == b"VERBOSE STATUS\n" else b"")


def test_nccls_service_is_asked_where_it_listens(tmp_path: Path) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Ras) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        port = server.server_address[1]
        nccl_ras.ask(tmp_path / "answer", {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"})
        thread.join()
    assert (tmp_path / "answer").read_text() == "NCCL version 2.27\n"
    nccl_ras.ask(tmp_path / "none", {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"})
    assert not (tmp_path / "none").exists()
