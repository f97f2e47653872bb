"""All ranks make room for the names of all ranks.

ranks: 3
kind: none
ends: ok
"""

import os

import torch.distributed as dist


def describe():
    return {"pid": os.getpid(), "rank": dist.get_rank()}


def directory(places):
    people = [None] * places
    dist.all_gather_object(people, describe())
    return {person["rank"]: person["pid"] for person in people}


def main():
    dist.init_process_group("gloo")
    others = dist.get_world_size() - 1
    if dist.get_rank() == 0:
        book = directory(others + 1)
        print("workers:", sorted(book))
    else:
        book = directory(others + 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
