"""Which part of a tensor this rank has."""

import torch
from torch.distributed.tensor import DTensor

Slices = tuple[slice, ...]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that this rank stores: all of it, or its shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_slices(tensor: torch.Tensor) -> Slices:
    """Where this rank's part lies in the whole tensor."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, size) for size in tensor.shape)
    # What torch.distributed.checkpoint asks of a tensor. It knows every placement, also FSDP2 over tensor parallel.
    chunks = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    if not chunks or not local_part(tensor).numel():
        return tuple(slice(0, 0) for _ in tensor.shape)
    chunk = chunks[0]
    return tuple(slice(begin, begin + size) for begin, size in zip(chunk.offsets, chunk.sizes, strict=True))


@torch.no_grad()
def copy_own_part(target: torch.Tensor, whole: torch.Tensor) -> None:
    local = local_part(target)
    if local.numel():
        local.copy_(whole[own_slices(target)] if local.dim() else whole)
