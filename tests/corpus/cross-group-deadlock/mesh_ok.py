"""On a 2x2 mesh all ranks reduce over rows first, then over columns.

ranks: 4
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def reduce_both(tensor, mesh, rows_first):
    order = ["row", "column"] if rows_first else ["column", "row"]
    for axis in order:
        dist.all_reduce(tensor, group=mesh.get_group(axis))
    return tensor


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("column", "row"))
    column, row = mesh.get_coordinate()
    partial = torch.full((3,), float(dist.get_rank()))
    total = reduce_both(partial, mesh, rows_first=row >= 0)
    print(f"({row}, {column}): {total.tolist()}")
    dist.destroy_process_group()


main()
