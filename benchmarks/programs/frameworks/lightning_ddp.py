"""Lightning's BoringModel under its DDP strategy. Prints the loss and the weights of each rank."""

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel

seed_everything(0, verbose=False)
model = BoringModel()
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    max_epochs=2,
    limit_train_batches=4,
    limit_val_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model)
print("weights", torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum().item())
trainer.test(model, verbose=False)
print("tested")
