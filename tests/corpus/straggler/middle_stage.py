"""The middle stage of a pipeline sharpens each frame several times, so the stages before and after it wait.

ranks: 3
kind: straggler
look at: 1
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn

FRAMES = 30
KERNEL = torch.tensor([[0.0, -1.0, 0.0], [-1.0, 5.0, -1.0], [0.0, -1.0, 0.0]]).view(1, 1, 3, 3)


class Stage:
    def __init__(self, passes):
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.passes = passes
        self.frame = torch.zeros(1, 1, 96, 96)

    def take(self, number):
        if self.rank == 0:
            self.frame = torch.rand(1, 1, 96, 96, generator=torch.Generator().manual_seed(number))
        else:
            dist.recv(self.frame, src=self.rank - 1)

    def sharpen(self):
        for _ in range(self.passes):
            self.frame = nn.functional.conv2d(self.frame, KERNEL, padding=1).clamp(0, 1)  # GUILTY

    def hand_on(self):
        if self.rank < self.last:
            dist.send(self.frame, dst=self.rank + 1)  # GUILTY


def run(stage):
    for number in range(FRAMES):
        stage.take(number)  # GUILTY
        stage.sharpen()  # GUILTY
        stage.hand_on()  # GUILTY
        dist.barrier()
    return stage.frame.mean().item()


dist.init_process_group("gloo")
torch.set_num_threads(1)
result = run(Stage(passes=400 if dist.get_rank() == 1 else 4))
print(f"rank {dist.get_rank()}: {result:.3f}")
dist.destroy_process_group()
