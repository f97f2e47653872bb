"""rollcall run -n 2 examples/average_by_hand.py

Data-parallel training without DistributedDataParallel: every rank trains on its own part of the data, and after each
backward pass the ranks average their gradients. DistributedDataParallel does the same, but faster.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import rollcall


def partition(length: int, rank: int, world_size: int) -> torch.Tensor:
    """The rows of this rank. All ranks use the same order; each takes every world_size-th row."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(0))
    usable = length - length % world_size  # otherwise some ranks would take one step more, and wait forever
    return order[rank:usable:world_size]


def average_gradients(model: nn.Module, world_size: int) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= world_size


with rollcall.init() as world:
    digits = load_digits()
    mine = partition(len(digits.data), world.rank, world.size)
    images = torch.tensor(digits.data, dtype=torch.float32, device=world.device)[mine] / 16
    labels = torch.tensor(digits.target, device=world.device)[mine]

    rollcall.seed_all(0)  # all ranks start with the same weights: only gradients are averaged
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(world.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)

    for epoch in range(5):
        losses = []
        for batch_images, batch_labels in zip(images.split(64), labels.split(64), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch_images), batch_labels)
            loss.backward()
            average_gradients(model, world.size)
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: rank {world.rank} has a mean loss of {sum(losses) / len(losses):.3f}")

    weights = nn.utils.parameters_to_vector(model.parameters())
    all_weights = [torch.empty_like(weights) for _ in range(world.size)]
    dist.all_gather(all_weights, weights)
    if world.is_first:
        print(f"weights equal on all {world.size} ranks: {all(torch.equal(weights, each) for each in all_weights)}")
