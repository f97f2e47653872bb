"""One seed for every random generator that a training program is likely to use."""

import random

from rollcall.errors import UsageError
from rollcall.initialization.current_rank import find_rank


def seed_all(seed: int, per_rank: bool = False) -> int:
    """Seed random, numpy and torch (with CUDA), and return the seed used.

    With `per_rank` each rank adds its global rank. Equal model weights need the common seed; different
    shuffling or augmentation on each rank needs a seed per rank.
    """
    import numpy as np  # here, and torch: `import rollcall` alone must stay fast
    import torch

    used = seed + find_rank() if per_rank else seed
    # Numpy's legacy generator has the smallest range of the three.
    if not 0 <= used < 2**32:
        raise UsageError(f"seed {used} is out of range: use a number from 0 to {2**32 - 1}")
    random.seed(used)
    np.random.seed(used)
    torch.manual_seed(used)
    return used
