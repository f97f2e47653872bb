"""One of each collective, with roots, dtypes and reduce ops of all sorts."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
ones = torch.ones(8, device=device)
for root in (0, world - 1):
    dist.broadcast(ones, src=root)
    dist.reduce(ones, dst=root, op=dist.ReduceOp.MAX)
    dist.gather(ones, [torch.empty_like(ones) for _ in range(world)] if rank == root else None, dst=root)
    dist.scatter(torch.empty_like(ones), [ones.clone() for _ in range(world)] if rank == root else None, src=root)
dist.all_gather([torch.empty_like(ones) for _ in range(world)], ones)
dist.all_gather_into_tensor(torch.empty(8 * world, device=device), ones)
dist.reduce_scatter_tensor(ones, torch.ones(8 * world, device=device))
dist.all_reduce(torch.ones(3, device=device, dtype=torch.int32), op=dist.ReduceOp.PRODUCT)
handle = dist.all_reduce(ones.to(torch.bfloat16), async_op=True)
dist.all_to_all_single(torch.empty(world, device=device), torch.ones(world, device=device))
handle.wait()
dist.barrier()
dist.destroy_process_group()
