"""The embedded default: 1,797 real images of handwritten digits, which scikit-learn brings along, and two models."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from rollcall.errors import UsageError

TEST_SAMPLES = 360  # the last ones, written by other hands than the first


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Images of 8 × 8 pixels from 0 to 1 with what they show: for training, and for testing."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError:
        raise UsageError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        ) from None
    digits = load()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    return (
        TensorDataset(images[:-TEST_SAMPLES], labels[:-TEST_SAMPLES]),
        TensorDataset(images[-TEST_SAMPLES:], labels[-TEST_SAMPLES:]),
    )


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


MODELS = {"mlp": make_mlp, "cnn": make_cnn}


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == labels).float().mean()
