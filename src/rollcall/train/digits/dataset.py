"""1,797 images of handwritten digits, 8 × 8 pixels each. scikit-learn contains them, so nothing is downloaded."""

import contextlib

import torch
from torch.utils.data import TensorDataset

# The fork server imports this once for all ranks. Without scikit-learn the ranks report it (check_scikit_learn).
with contextlib.suppress(ModuleNotFoundError):
    from sklearn.datasets import load_digits

_TEST_SAMPLES = 360  # the last ones: other people wrote them


def load_train_and_test() -> tuple[TensorDataset, TensorDataset]:
    """Images with values from 0 to 1, and the digits that they show."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    return (
        TensorDataset(images[:-_TEST_SAMPLES], labels[:-_TEST_SAMPLES]),
        TensorDataset(images[-_TEST_SAMPLES:], labels[-_TEST_SAMPLES:]),
    )
