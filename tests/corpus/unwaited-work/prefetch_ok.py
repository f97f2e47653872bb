"""A helper starts an asynchronous broadcast of the next table and returns its handle, which is waited for.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


class TableFeed:
    """Rank 0 owns the tables; the others receive them."""

    def __init__(self, rows):
        self.rows = rows

    def fetch(self, version):
        table = torch.zeros(self.rows, 64)
        if dist.get_rank() == 0:
            table += version
        work = dist.broadcast(table, src=0, async_op=True)
        return table, work


def lookup(feed, version, keys):
    table, work = feed.fetch(version)
    work.wait()
    return table[keys].sum().item()


def main():
    dist.init_process_group("gloo")
    feed = TableFeed(rows=20_000)
    keys = torch.tensor([0, 9_999, 19_999])
    for version in range(1, 4):
        print(f"rank {dist.get_rank()} version {version}: {lookup(feed, version, keys)}")
    dist.barrier()
    dist.destroy_process_group()


main()
