"""A line in the log of rank 2 sends the regular expression into endless backtracking; the others wait for its counts.

ranks: 3
kind: busy-rank
look at: 2
ends: hangs
"""

import re

import torch
import torch.distributed as dist

ENTRY = re.compile(r"^(\w+\s?)+: \d+$")
LOGS = {
    0: ["loaded shard: 12", "epoch done: 3"],
    1: ["loaded shard: 7"],
    2: ["loaded shard: 9", "lost connection to the storage server and gave up after many attempts"],
}


def count_entries(lines):
    found = 0
    for line in lines:
        if ENTRY.match(line):  # GUILTY
            found += 1
    return found


def total_entries(lines):
    total = torch.tensor(count_entries(lines))
    dist.all_reduce(total)
    return total.item()


dist.init_process_group("gloo")
print(f"{total_entries(LOGS[dist.get_rank()])} entries")
dist.destroy_process_group()
