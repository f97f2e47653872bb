"""Objects of different sizes, gathered, scattered and broadcast; what they say decides what follows."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
gathered = [None] * world
dist.all_gather_object(gathered, {"rank": rank, "names": ["x" * rank] * (rank % 3)})
for _ in range(sum(len(each["names"]) for each in gathered)):
    dist.all_reduce(torch.ones(3, device=device))
mine = [None]
dist.scatter_object_list(mine, [list(range(number)) for number in range(world)] if rank == 0 else None, src=0)
everything = [None] * world if rank == 0 else None
dist.gather_object(len(mine[0]), everything, dst=0)
decided = [sum(everything)] if rank == 0 else [None]
dist.broadcast_object_list(decided, src=0)
for _ in range(decided[0] % 5):
    dist.barrier()
dist.destroy_process_group()
