"""A wrapper round native memory reads at an address that every rank has set.

ranks: 3
kind: none
ends: ok
"""

import ctypes

import torch
import torch.distributed as dist


class NativeBuffer:
    def __init__(self, values):
        self.values = (ctypes.c_float * len(values))(*values)
        self.address = ctypes.addressof(self.values)
        self.size = len(values)

    def detach(self):
        self.address = 0

    def tensor(self):
        floats = ctypes.c_float * self.size
        return torch.tensor(list(floats.from_address(self.address)))


def average(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()


dist.init_process_group("gloo")
rank = dist.get_rank()
buffers = [NativeBuffer([rank, step, 1.0]) for step in range(4)]
for step, buffer in enumerate(buffers):
    mean = average(buffer.tensor())
    if rank == 0:
        print(f"step {step}: {mean.tolist()}")
dist.destroy_process_group()
