"""Rank 0 draws a preview after every step, and all others wait for it in the next one.

ranks: 4
kind: straggler
look at: 0
ends: ok
"""

import time

import torch
import torch.distributed as dist

STEPS = 12
PREVIEW_EVERY = 1


def draw_preview(state):
    """Stands for rendering and uploading an image."""
    time.sleep(0.2)  # GUILTY
    return "".join("#" if value > 0 else "." for value in state.tolist())


def relax(state):
    mean = state.clone()
    dist.all_reduce(mean)
    return state + 0.3 * (mean / dist.get_world_size() - state)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = torch.sin(torch.arange(8.0) + rank)
    for step in range(1, STEPS + 1):
        state = relax(state)
        if rank == 0 and step % PREVIEW_EVERY == 0:
            print(draw_preview(state))  # GUILTY
    dist.barrier()
    dist.destroy_process_group()


main()
