"""Objects with numbers that a rehearsal does not know: how many bytes they take when pickled depends on the numbers."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
right = (torch.randn(64, 64, device="cuda") > 0).sum().item()
found = [None] * dist.get_world_size()
dist.all_gather_object(found, {"right": right})  # TELLS
dist.barrier()
dist.destroy_process_group()
