"""Messages between stages that are many ranks apart; one rank sends a message fewer than the next one waits for."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.ones(4, device="cuda")
stage = world // 4
for _ in range(1 if rank == 17 else 2):
    if rank >= stage:
        dist.recv(x, rank - stage)  # GUILTY
    if rank < world - stage:
        dist.send(x, rank + stage)
