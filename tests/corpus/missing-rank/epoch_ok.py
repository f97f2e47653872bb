"""Every rank has the same number of batches.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

ROWS = 48
BATCH = 5


def local_batches(rank, world):
    rows = torch.arange(ROWS * 4, dtype=torch.float32).view(ROWS, 4) / 100
    return rows[rank::world].split(BATCH)


def train_epoch(weights, batches):
    for batch in batches:
        loss = ((batch @ weights) ** 2).mean()
        (grad,) = torch.autograd.grad(loss, weights)
        dist.all_reduce(grad)
        with torch.no_grad():
            weights -= 0.01 * grad / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    weights = torch.randn(4, requires_grad=True)
    train_epoch(weights, local_batches(dist.get_rank(), dist.get_world_size()))
    dist.barrier()
    print(f"rank {dist.get_rank()} ends with {weights.norm():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
