"""train_on_off.py MODEL --pairs N --steps N

Trains with DDP under `rollcall run`, and puts the recording up and takes it down again from block to block: what a step
takes with it and without, by blocks and each, goes into $ROLLCALL_BENCH/on-off.json. Two processes differ by several
percent for as long as they live, whatever they do; one process does not differ from itself.

Taken down is all that a step meets: the hooks of forward, backward and the optimizer, and the sampler's thread. The
kernel in C++ that sees DDP's buckets stays, and passes on what it gets.
"""

import argparse
import itertools
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import train_steps
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer

from rollcall.record import recorder, sampler
from rollcall.record.native import pen

SETTLE_S = 0.005
FOLDER = Path(os.environ["ROLLCALL_BENCH"])


class Switch:
    """The recording of a DDP step, which is on now."""

    def __init__(self) -> None:
        self._recorder: Any = recorder.current()
        self._wrapped = [(owner, name, getattr(owner, name)) for owner, name in _WRAPPED]
        self._hooks = [(hooks, dict(hooks)) for hooks in _STEP_HOOKS]
        sampler._MOST_LOOKS = 0.0  # as in a program that has run for a while, and has none left from its beginning
        assert all(hooks for _, hooks in self._hooks), "train a step first: hooks come with the first DDP module"

    def turn(self, is_on: bool) -> None:
        for owner, name, wrapper in self._wrapped:
            setattr(owner, name, wrapper if is_on else wrapper.__wrapped__)
        for hooks, ours in self._hooks:
            hooks.clear()
            hooks.update(ours if is_on else {})
        pen.inside(not is_on)  # it takes what it sees for recorded
        if is_on:
            self._recorder._sample()
        elif self._recorder._sampler is not None:
            self._recorder._sampler.stop()
            self._recorder._sampler = None


_WRAPPED: tuple[tuple[Any, str], ...] = ((DistributedDataParallel, "forward"), (torch.autograd, "backward"))
_STEP_HOOKS = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    ends_ns: list[float] = []
    _, block = train_steps.prepare(options, torch.device("cpu"), [], ends_ns)
    block()  # not measured
    switch, chance = Switch(), random.Random(0)  # all ranks have the same order
    told: dict[str, list[float]] = {"on": [], "off": [], "each on": [], "each off": []}
    for _ in range(options.pairs):
        for way in chance.sample(("on", "off"), 2):
            switch.turn(way == "on")
            time.sleep(SETTLE_S)  # a thread has just begun or ended
            ends_ns.clear()
            told[way].append(block())
            told[f"each {way}"] += [end - begin for begin, end in itertools.pairwise(ends_ns)]
    switch.turn(True)
    if dist.get_rank() == 0:
        (FOLDER / "on-off.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=train_steps.BATCH)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    main(parser.parse_args())
