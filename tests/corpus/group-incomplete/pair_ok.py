"""All ranks create the group of the first two, also rank 2, which is not in it.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


def share(values, group):
    moments = torch.tensor(values) * (dist.get_rank() + 1)
    dist.all_reduce(moments, group=group)
    return moments.tolist()


def build_groups(members):
    pair = dist.new_group(members)
    if dist.get_rank() not in members:
        pair = None
    everyone = dist.new_group()
    return pair, everyone


def main():
    dist.init_process_group("gloo")
    pair, everyone = build_groups([0, 1])
    if pair is not None:
        print(f"rank {dist.get_rank()}: {share([1.0, 2.0], pair)}")
    print(f"rank {dist.get_rank()}: {share([3.0, 4.0], everyone)}")
    dist.destroy_process_group()


main()
