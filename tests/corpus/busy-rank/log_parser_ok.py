"""The regular expression reads the logs of all ranks in one go.

ranks: 3
kind: none
ends: ok
"""

import re

import torch
import torch.distributed as dist

ENTRY = re.compile(r"^\w+(\s\w+)*: \d+$")
LOGS = {
    0: ["loaded shard: 12", "epoch done: 3"],
    1: ["loaded shard: 7"],
    2: ["loaded shard: 9", "lost connection to the storage server and gave up after many attempts"],
}


def count_entries(lines):
    found = 0
    for line in lines:
        if ENTRY.match(line):
            found += 1
    return found


def total_entries(lines):
    total = torch.tensor(count_entries(lines))
    dist.all_reduce(total)
    return total.item()


dist.init_process_group("gloo")
print(f"{total_entries(LOGS[dist.get_rank()])} entries")
dist.destroy_process_group()
