"""DeepSpeed's ZeRO stage 1 on CPU ranks."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
config = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=True)
rows = torch.randn(32, 16, generator=torch.Generator().manual_seed(engine.global_rank))
for start in range(0, 32, 4):
    loss = engine(rows[start : start + 4]).square().mean()
    engine.backward(loss)
    engine.step()
print("loss", loss.item())
print("weights", sum(p.detach().double().sum().item() for p in model.parameters()))
torch.distributed.destroy_process_group()
