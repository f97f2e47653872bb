"""The thread takes lines until it is told to end.

ranks: 3
kind: none
ends: ok
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
        self.lines.put(value)


dist.init_process_group("gloo")
log = Log(100)
for _ in range(12):
    loss = torch.rand(1)
    dist.all_reduce(loss)
    log.add(loss.item())
dist.destroy_process_group()
