"""A training of a model with 7 billion parameters, sharded by FSDP2 over all ranks, to be rehearsed."""

import os

import torch
import torch.distributed as dist
from memory_configurations import Configuration, build, build_optimizer
from torch.nn import functional

MADE = Configuration(wrapper="fsdp", layers=32, width=4096, heads=32, batch=1, length=4096, checkpoints=True)


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = build(MADE)
    optimizer = build_optimizer(MADE, model)
    for _ in range(3):
        tokens = torch.randint(0, MADE.vocabulary, (MADE.batch, MADE.length), device="cuda")
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
