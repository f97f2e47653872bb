"""Reads and restores the states of this rank's random generators, as tensors."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rollcall.seeds import seed_all


def read_rng(device: torch.device) -> dict[str, torch.Tensor]:
    """Those of Python, numpy, torch and this rank's GPU."""
    kind, keys, *rest = np.random.get_state()
    state = {
        "python": _pack(random.getstate()),
        "numpy": _pack([kind, np.asarray(keys).tolist(), *rest]),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng(state: dict[str, torch.Tensor], device: torch.device) -> None:
    version, words, gauss = _unpack(state["python"])
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = _unpack(state["numpy"])
    position, has_gauss, cached = rest
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[None]:
    """Random numbers that are drawn inside do not change those of the training."""
    before = read_rng(device)
    try:
        yield
    finally:
        set_rng(before, device)


def reseed(step: int) -> None:
    """Seeds a rank that did not exist when the snapshot was taken: new random numbers, but the same at every
    restart."""
    seed_all((step * 2_654_435_761) % 2**31, per_rank=True)


def _pack(value: object) -> torch.Tensor:
    # JSON keeps integers of any size and every bit of a float, and cannot contain code.
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _unpack(packed: torch.Tensor) -> list[Any]:
    return list(json.loads(bytes(packed.tolist())))
