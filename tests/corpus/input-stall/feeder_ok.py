"""The feeders of all ranks bring as many items as the consumers ask for.

ranks: 3
kind: none
ends: ok
"""

import queue
import threading

import torch
import torch.distributed as dist

ITEMS = {0: 6, 1: 6, 2: 6}


class Feeder(threading.Thread):
    def __init__(self, rank):
        super().__init__(daemon=True)
        self.queue = queue.Queue(maxsize=2)
        self.rank = rank

    def run(self):
        for item in range(ITEMS[self.rank]):
            self.queue.put(torch.full((4,), float(item)))


def consume(feeder, steps):
    state = torch.zeros(4)
    for _ in range(steps):
        batch = feeder.queue.get()
        dist.all_reduce(batch)
        state += batch
    return state


def main():
    dist.init_process_group("gloo")
    feeder = Feeder(dist.get_rank())
    feeder.start()
    print(consume(feeder, steps=6).tolist())
    dist.destroy_process_group()


main()
