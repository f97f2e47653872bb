"""The thread that writes the log of rank 2 has ended. The queue is full, and put() waits for room that never comes.

ranks: 3
kind: busy-rank
look at: 2
ends: hangs
"""

import queue
import threading

import torch
import torch.distributed as dist


class Log:
    def __init__(self, most_lines):
        self.lines = queue.Queue(maxsize=3)
        threading.Thread(target=self.write, args=(most_lines,), daemon=True).start()

    def write(self, most_lines):
        for _ in range(most_lines):
            self.lines.get()

    def add(self, value):
        self.lines.put(value)  # GUILTY


dist.init_process_group("gloo")
log = Log(2 if dist.get_rank() == 2 else 100)
for _ in range(12):
    loss = torch.rand(1)
    dist.all_reduce(loss)
    log.add(loss.item())
dist.destroy_process_group()
