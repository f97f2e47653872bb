"""All ranks use what a device that is not there must still give; then each comes to another wall."""

import ctypes
import os
import subprocess
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.cpp_extension import load_inline

dist.init_process_group("nccl")
torch.save({"weight": torch.ones(3)}, "weights.pt")
for location in ("cuda", {"cpu": "cuda:0"}, lambda storage, _: storage.cuda(0)):
    assert torch.load("weights.pt", map_location=location)["weight"].is_cuda
generator = torch.Generator(device="cuda").manual_seed(1)
assert generator.device.type == torch.cuda.default_generators[0].device.type == "cuda"
stream, began, ended = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream):
    images = torch.randn(2, 3, 8, 8, device="cuda", generator=generator)
    images.record_stream(stream)
began.record()
ended.record(stream)
assert began.elapsed_time(ended) >= 0
torch.cuda.nvtx.range_push("forward")
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
model = DistributedDataParallel(torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda())
model.register_comm_hook(None, bf16_compress_hook)
torch.compile(model)(images).sum().backward()

library = torch.library.Library("walls", "DEF")
library.define("twice(Tensor x) -> Tensor")


@torch.library.custom_op("walls::thrice", mutates_args=(), device_types="cuda")
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def read_in_c():
    ctypes.c_float.from_address(images.data_ptr()).value += 1


def import_triton():
    raise ModuleNotFoundError("No module named 'triton'", name="triton")  # as on a CPU wheel, wherever this runs


walls = [
    lambda: torch.ops.walls.twice(images),
    lambda: thrice(images),
    lambda: load_inline("extension", cpp_sources=""),
    lambda: torch.cuda.CUDAGraph(),
    lambda: images[images > 0],
    read_in_c,
    import_triton,
    lambda: subprocess.run(["nvidia-smi"], env={"PATH": ""}, check=True),
    lambda: torch.nn.Embedding(4, 2, sparse=True).cuda()(torch.zeros(1, dtype=int, device="cuda")).sum().backward(),
    lambda: distributed_c10d._get_default_store().get("of another rank"),
    lambda: Path("of-rank-1").read_text(),
    lambda: subprocess.check_call(["touch", "made-by-a-program"]),
    lambda: (os.system("mkdir made"), Path("made/file").touch()),
    lambda: 1 // int((images < 10).all()),
]
if dist.get_rank() == 1:
    Path("of-rank-1").touch()
walls[dist.get_rank()]()
