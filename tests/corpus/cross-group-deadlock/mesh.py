"""On a 2x2 mesh the ranks of one diagonal reduce over rows first, those of the other over columns first.

ranks: 4
kind: cross-group-deadlock
look at: 0,1,2,3
ends: hangs
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def reduce_both(tensor, mesh, rows_first):
    order = ["row", "column"] if rows_first else ["column", "row"]
    for axis in order:
        dist.all_reduce(tensor, group=mesh.get_group(axis))  # GUILTY
    return tensor


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("column", "row"))
    column, row = mesh.get_coordinate()
    partial = torch.full((3,), float(dist.get_rank()))
    total = reduce_both(partial, mesh, rows_first=row == column)
    print(f"({row}, {column}): {total.tolist()}")
    dist.destroy_process_group()


main()
