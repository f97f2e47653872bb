"""What ranks tell each other decides how many calls they make: lengths, a stop flag, a configuration, objects."""

import random
import threading

import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
length = torch.tensor([5 + rank], device="cuda")
dist.all_reduce(length, op=dist.ReduceOp.MIN)
config = [{"barriers": 2}] if rank == 0 else [None]
dist.broadcast_object_list(config, src=0)
for _ in range(config[0]["barriers"]):
    dist.barrier()
for step in range(length.item()):
    stop = torch.tensor([int(rank == 1 and step == 3)], device="cuda")
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if stop.item():
        break
drawn = [None] * dist.get_world_size()
dist.all_gather_object(drawn, (random.random(), torch.rand(()).item(), np.random.rand()))  # the same in each pass
for _ in range(int(10 * sum(map(sum, drawn)))):
    dist.barrier()
gathered = [None] * dist.get_world_size()


def tell_in_background():
    """As when a checkpoint is saved: what ranks tell each other in another thread counts, too."""
    dist.all_gather_object(gathered, "x" * rank)


thread = threading.Thread(target=tell_in_background)
thread.start()
thread.join()
for _ in range(sum(map(len, gathered))):
    dist.all_reduce(torch.ones(2, device="cuda"))

if rank == 0:
    torch.save({"step": 3}, "told.pt")
dist.barrier()
assert torch.load("told.pt")["step"] == 3
