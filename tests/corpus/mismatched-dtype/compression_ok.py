"""All ranks compress their gradients to float16.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn


def wire_format(rank):
    has_native_half = rank >= 0
    return torch.float16 if has_native_half else torch.bfloat16


def reduce_compressed(params, dtype):
    flat = torch.cat([param.grad.flatten() for param in params]).to(dtype)
    dist.all_reduce(flat)
    flat = flat.float() / dist.get_world_size()
    for param, grad in zip(params, flat.split([param.numel() for param in params]), strict=True):
        param.grad.copy_(grad.view_as(param))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = nn.Linear(8, 4)
    params = list(model.parameters())
    dtype = wire_format(dist.get_rank())
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(10, 8)).square().mean().backward()
        reduce_compressed(params, dtype)
        with torch.no_grad():
            for param in params:
                param -= 0.1 * param.grad
    print(f"norm {params[0].norm():.4f}")
    dist.destroy_process_group()


main()
