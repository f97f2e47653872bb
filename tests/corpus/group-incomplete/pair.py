"""Only the two members create their group; the next group, of all, is the second for them and the first for rank 2.

ranks: 3
kind: group-incomplete
look at: 2
ends: hangs
"""

import torch
import torch.distributed as dist


def share(values, group):
    moments = torch.tensor(values) * (dist.get_rank() + 1)
    dist.all_reduce(moments, group=group)
    return moments.tolist()


def build_groups(members):
    pair = None
    if dist.get_rank() in members:
        pair = dist.new_group(members)  # GUILTY
    everyone = dist.new_group()  # GUILTY
    return pair, everyone


def main():
    dist.init_process_group("gloo")
    pair, everyone = build_groups([0, 1])
    if pair is not None:
        print(f"rank {dist.get_rank()}: {share([1.0, 2.0], pair)}")
    print(f"rank {dist.get_rank()}: {share([3.0, 4.0], everyone)}")
    dist.destroy_process_group()


main()
