"""The same with Lightning Fabric: its strategy takes a function that shards the model."""

import os
import sys

import fsdp_figures
import torch
from fsdp_figures import DEVICE, STEPS, Layers, batches, loss_of
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard


def shard(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


ranks = int(os.environ["WORLD_SIZE"])
strategy = ModelParallelStrategy(shard, data_parallel_size=ranks, tensor_parallel_size=1)
fabric = Fabric(accelerator=DEVICE, devices=ranks, strategy=strategy)
fabric.launch()
figures = fsdp_figures.Figures()
with fabric.init_module(empty_init=True):
    model = Layers()
model = fabric.setup(model)
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
with figures.timing("steps", STEPS):
    for inputs, targets in batches(fabric.global_rank, fabric.world_size):
        optimizer.zero_grad()
        fabric.backward(loss_of(model(inputs), targets))
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
with figures.timing("save"):
    fabric.save(sys.argv[1], {"model": model, "optimizer": optimizer})
with figures.timing("resume"):
    fabric.load(sys.argv[1], {"model": model, "optimizer": optimizer})
figures.tell()
