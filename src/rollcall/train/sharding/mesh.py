"""The ranks as a grid: replicas × shards × tensor parallel. Ranks of one host are neighbours in it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollcall.train.sharding.options import Fsdp
from rollcall.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Grid:
    """How many ranks there are along each dimension."""

    replicas: int
    shards: int
    tensor: int

    @property
    def data_ranks(self) -> int:
        """Ranks that see different samples."""
        return self.replicas * self.shards


def find_problem(options: Fsdp, world: World) -> str | None:
    replicas, tensor = _replicas(options, world), options.tensor_parallel
    for name, value in (("replicas", replicas), ("tensor_parallel", tensor)):
        if not isinstance(value, int) or value < 1:
            return f"{name} is {value!r}: expected 1 or more" + (", or 'hosts'" if name == "replicas" else "")
    if world.size % (replicas * tensor):
        what = " × ".join(
            f"{count} {name}" for count, name in ((replicas, "replicas"), (tensor, "tensor parallel")) if count > 1
        )
        return f"{world.size} ranks cannot be divided into {what}: use numbers whose product divides {world.size}"
    if options.replicas == "hosts" and world.info.local_world_size * replicas != world.size:
        return f"replicas='hosts', but the {replicas} hosts do not have the same number of ranks: use a number"
    return None


def grid_of(options: Fsdp, world: World) -> Grid:
    replicas = _replicas(options, world)
    return Grid(replicas, world.size // (replicas * options.tensor_parallel), options.tensor_parallel)


def make_meshes(grid: Grid, device_type: str) -> "tuple[DeviceMesh, DeviceMesh | None]":
    """The mesh over which parameters are sharded (and replicated), and that of tensor parallel."""
    from torch.distributed.device_mesh import init_device_mesh

    sizes = {"replicate": grid.replicas, "shard": grid.shards, "tensor": grid.tensor}
    dims = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    mesh = init_device_mesh(device_type, tuple(dims.values()), mesh_dim_names=tuple(dims))
    data = ("replicate", "shard") if grid.replicas > 1 else "shard"
    return mesh[data], mesh["tensor"] if grid.tensor > 1 else None


def _replicas(options: Fsdp, world: World) -> int:
    return world.info.nnodes if options.replicas == "hosts" else options.replicas
