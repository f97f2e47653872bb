"""Stops a rank after so many steps of an optimizer."""

import sys
from collections import Counter
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

is_cut = False  # whether this rank was stopped


def stop_after(steps: int) -> None:
    """Of any one optimizer; 0: it is not stopped."""
    if not steps:
        return
    done: Counter[int] = Counter()

    def count(optimizer: Any, *_: Any) -> None:
        global is_cut
        done[id(optimizer)] += 1
        if done[id(optimizer)] >= steps:
            is_cut = True
            sys.exit()

    register_optimizer_step_post_hook(count)
