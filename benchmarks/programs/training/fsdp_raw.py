"""FSDP2 by hand: from meta, save and resume with torch.distributed.checkpoint."""

import sys

import fsdp_figures
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_figures import DEVICE, STEPS, Layers, batches, loss_of
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
figures = fsdp_figures.Figures()
with torch.device("meta"):
    model = Layers()
mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device=DEVICE)
torch.manual_seed(dist.get_rank())
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with figures.timing("steps", STEPS):
    for inputs, targets in batches(dist.get_rank(), dist.get_world_size()):
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
with figures.timing("save"):
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=sys.argv[1])
with figures.timing("resume"):
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=sys.argv[1])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
figures.tell()
dist.destroy_process_group()
