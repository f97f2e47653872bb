"""The same with Accelerate, on a GPU: without one it takes DDP, whatever its plugin says."""

import sys

import fsdp_figures
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from fsdp_figures import STEPS, Layers, batches, loss_of

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["Linear"],
    state_dict_type="SHARDED_STATE_DICT",
)
accelerator = Accelerator(fsdp_plugin=plugin)
figures = fsdp_figures.Figures()
model = Layers()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
with figures.timing("steps", STEPS):
    for inputs, targets in batches(accelerator.process_index, accelerator.num_processes):
        optimizer.zero_grad()
        accelerator.backward(loss_of(model(inputs), targets))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
with figures.timing("save"):
    accelerator.save_state(sys.argv[1])
with figures.timing("resume"):
    accelerator.load_state(sys.argv[1])
figures.tell()
accelerator.end_training()
