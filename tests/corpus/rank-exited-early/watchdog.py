"""A watchdog thread of rank 1 ends the process while it trains, since it was never told of progress.

ranks: 3
kind: rank-exited-early
look at: 1
ends: fails
"""

import os
import threading
import time

import torch
import torch.distributed as dist

LIMIT_S = 0.3


class Watchdog(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.last_s = time.monotonic()

    def run(self):
        while time.monotonic() - self.last_s < LIMIT_S:
            time.sleep(0.05)
        os._exit(3)  # GUILTY

    def feed(self):
        self.last_s = time.monotonic()


dist.init_process_group("gloo")
watchdog = Watchdog()
if dist.get_rank() == 1:
    watchdog.start()
for _ in range(100):
    x = torch.ones(10)
    dist.all_reduce(x)
    time.sleep(0.01)
dist.destroy_process_group()
