"""The thread of the heartbeat has a group of its own, so the order of threads does not matter.

ranks: 2
kind: none
ends: ok
"""

import threading
import time

import torch
import torch.distributed as dist


class Heartbeat(threading.Thread):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.alive = None

    def run(self):
        time.sleep(0.4)
        beat = torch.ones(1)
        dist.all_reduce(beat, group=self.group)
        self.alive = int(beat)


def train_step(batch_seconds):
    time.sleep(batch_seconds)
    loss = torch.full((1,), 10.0)
    dist.all_reduce(loss)
    return loss.item()


dist.init_process_group("gloo")
heartbeat = Heartbeat(group=dist.new_group())
heartbeat.start()
loss = train_step(batch_seconds=0.0 if dist.get_rank() == 0 else 1.0)
heartbeat.join()
print(f"rank {dist.get_rank()}: loss {loss}, {heartbeat.alive} alive")
dist.barrier()
dist.destroy_process_group()
