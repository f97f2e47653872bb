"""A transformers Trainer with a tiny model of random weights, evaluation and a checkpoint included."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
tokens = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": each, "labels": each} for each in tokens]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=6,
        per_device_train_batch_size=4,
        save_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:16])
    trainer.train()
    found = trainer.evaluate()
print("eval loss", found["eval_loss"])
print("weights", sum(p.detach().double().sum().item() for p in model.parameters()))
