"""Eight stages of a pipeline in each host; one stage sends a microbatch fewer than the next one waits for.

kind: p2p-against-collective
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
stage, stages = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", stage)
microbatches = 3 if rank == world - stages + 2 else 4
for _ in range(microbatches):
    x = torch.ones(4, 32, device=device)
    if stage > 0:
        dist.recv(x, rank - 1)  # GUILTY
    if stage < stages - 1:
        dist.send(x, rank + 1)  # GUILTY
dist.barrier()  # GUILTY
dist.destroy_process_group()
