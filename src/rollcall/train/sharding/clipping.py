"""Clips gradients of which each rank has a part.

Not torch's clip_grad_norm_: it fails for parameters of different meshes (tensor parallel beside layers that are not in
the plan), and for gradients in the host's memory under nccl.
"""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from rollcall.train.weights.parts import local_part
from rollcall.world import World


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], most: float, world: World) -> torch.Tensor:
    """Scale all gradients so that their norm over all ranks is at most `most`. Returns the norm before."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    squares = [_own_square(each, world) for each in gradients]
    total = torch.stack(squares).sum() if squares else torch.zeros((), device=world.device)
    if world.size > 1:
        dist.all_reduce(total)
    norm = total.sqrt()
    # The constant is that of torch's clip_grad_norm_.
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for each in gradients:
        local = local_part(each)
        local.mul_(factor.to(local.device, non_blocking=True))
    return norm


def _own_square(gradient: torch.Tensor, world: World) -> torch.Tensor:
    """This rank's part of the sum of squares: what several ranks have is divided among them."""
    local, copies = gradient, world.size
    if isinstance(gradient, DTensor):
        local = gradient.to_local()
        mesh, placements = gradient.device_mesh, gradient.placements
        parts = math.prod(mesh.size(dim) for dim, place in enumerate(placements) if not place.is_replicate())
        copies = world.size // parts
    norm: torch.Tensor = torch.linalg.vector_norm(local, dtype=torch.float32)
    return norm.square().to(world.device) / copies
