"""Stops a rank after some steps of its optimizer, or if it makes neither a step nor an op between ranks for long."""

import signal
import sys
import time
from collections import Counter
from typing import Any, NoReturn

from torch.optim.optimizer import register_optimizer_step_post_hook

from rollcall.rehearse.idle_ranks import GIVE_UP
from rollcall.rehearse.rank.collectives import count_ops
from rollcall.rehearse.rank.unsupported import Unsupported

is_cut = False  # whether this rank was stopped
_process_time = time.process_time  # the real one


def stop_after(steps: int) -> None:
    """Stops the rank after this number of steps of one optimizer; 0: it is not stopped."""
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


def stop_without_end(limit_s: float) -> None:
    """Counts CPU time, so that no rank is stopped because the machine is slow."""
    done, since_s = -1, 0.0
    steps = Counter[None]()
    register_optimizer_step_post_hook(lambda *_: steps.update([None]))

    def look(*_: Any) -> None:
        nonlocal done, since_s
        now_s, before = _process_time(), done
        done = count_ops() + steps.total()
        if done != before:
            since_s = now_s
        elif now_s - since_s >= limit_s:
            give_up("computes")

    def give_up(what: str) -> NoReturn:
        said = f"this rank {what} for {limit_s:g} s without an op between ranks or an optimizer step"
        raise Unsupported(said, "give what it waits for with --assume or leave it out; --rank-limit-s allows more")

    signal.signal(signal.SIGPROF, look)
    signal.signal(GIVE_UP, lambda *_: give_up("waits"))
    between_s = min(limit_s / 4, 5.0)
    signal.setitimer(signal.ITIMER_PROF, between_s, between_s)
