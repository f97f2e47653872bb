"""Rank 0 leaves itself out when it makes room for the names of the ranks, so its list is one short.

ranks: 3
kind: mismatched-splits
look at: 0
ends: fails
"""

import os

import torch.distributed as dist


def describe():
    return {"pid": os.getpid(), "rank": dist.get_rank()}


def directory(places):
    people = [None] * places
    dist.all_gather_object(people, describe())  # GUILTY
    return {person["rank"]: person["pid"] for person in people}


def main():
    dist.init_process_group("gloo")
    others = dist.get_world_size() - 1
    if dist.get_rank() == 0:
        book = directory(others)
        print("workers:", sorted(book))
    else:
        book = directory(others + 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
