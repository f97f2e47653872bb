"""python examples/one_device.py --epochs 3

One process, one device, a plain PyTorch loop. The other examples change a few lines of this one.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32)
options = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
loader = DataLoader(data, options.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

for epoch in range(options.epochs):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {len(loader)} steps, last loss {loss.item():.3f}")
