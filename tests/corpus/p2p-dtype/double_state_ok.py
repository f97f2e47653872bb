"""An optimizer's averages leave and arrive in single precision.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


def fresh_state(dtype):
    return {name: torch.zeros(5, dtype=dtype) for name in ("mean", "variance")}


def train(state, steps):
    for step in range(1, steps + 1):
        grad = torch.linspace(-1, 1, 5) * step
        state["mean"].mul_(0.9).add_(0.1 * grad)
        state["variance"].mul_(0.99).add_(0.01 * grad.square())


def move(state, source, target):
    """Move an optimizer's state from one rank to another."""
    for tensor in state.values():
        if dist.get_rank() == source:
            dist.isend(tensor, target).wait()
        else:
            dist.irecv(tensor, source).wait()


dist.init_process_group("gloo")
state = fresh_state(torch.float32)
if dist.get_rank() == 0:
    train(state, steps=4)
move(state, source=0, target=1)
print(f"variance {state['variance'].tolist()}")
dist.barrier()
dist.destroy_process_group()
