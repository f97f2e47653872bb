"""One master and one worker, each on its own host: the master sends a number, the worker sends back its double."""

import torch
import torch.distributed as dist

import rollcall

with rollcall.init() as world:
    number = torch.zeros(1)
    if world.is_first:
        number += 21
        dist.send(number, dst=1)
        dist.recv(number, src=1)
    else:
        dist.recv(number, src=0)
        number *= 2
        dist.send(number, dst=0)
    print(f"rank {world.rank} on {world.info.hostname}, master at {world.info.master_addr}: {number.item():.0f}")
