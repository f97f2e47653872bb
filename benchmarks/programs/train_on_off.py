"""train_on_off.py MODEL --pairs N --steps N

Trains with DDP under `rollcall run`, and puts the recording up and takes it down again from block to block: what a step
takes with it and without goes into $ROLLCALL_BENCH/on-off.json. Two processes differ by several percent for as long as
they live, whatever they do; one process does not differ from itself.

Taken down is all that a step meets: the hooks of forward, backward and the optimizer. The kernel in C++ that sees DDP's
buckets stays, and passes on what it gets. The sampler's thread stays, too, since a thread that comes or goes has the
scheduler move the others; what it takes of a CPU is told by the kernel, as a share of the time.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import train_steps
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer

from rollcall.record import recorder, sampler
from rollcall.record.cpp import library

FOLDER = Path(os.environ["ROLLCALL_BENCH"])


class Switch:
    """The recording of a DDP step, which is on now."""

    def __init__(self) -> None:
        self._wrapped = [(owner, name, getattr(owner, name)) for owner, name in _WRAPPED]
        self._hooks = [(hooks, dict(hooks)) for hooks in _STEP_HOOKS]
        assert all(hooks for _, hooks in self._hooks), "train a step first: hooks come with the first DDP module"

    def turn(self, is_on: bool) -> None:
        for owner, name, wrapper in self._wrapped:
            setattr(owner, name, wrapper if is_on else wrapper.__wrapped__)
        for hooks, ours in self._hooks:
            hooks.clear()
            hooks.update(ours if is_on else {})
        library.set_in_op(not is_on)  # the kernel takes every bucket for recorded


_WRAPPED: tuple[tuple[Any, str], ...] = ((DistributedDataParallel, "forward"), (torch.autograd, "backward"))
_STEP_HOOKS = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    _, block = train_steps.prepare(options, torch.device("cpu"), [])
    block()  # not measured
    sampler_ns = restart_sampler()
    switch, chance = Switch(), random.Random(0)  # all ranks have the same order
    told: dict[str, list[float]] = {"on": [], "off": []}
    began_ns, sampled_ns = time.perf_counter_ns(), sampler_ns()
    for _ in range(options.pairs):
        for way in chance.sample(("on", "off"), 2):
            switch.turn(way == "on")
            dist.barrier()  # both begin together
            told[way].append(block())
    sampler_share = (sampler_ns() - sampled_ns) / (time.perf_counter_ns() - began_ns)
    switch.turn(True)
    if dist.get_rank() == 0:
        (FOLDER / "on-off.json").write_text(json.dumps({**told, "sampler": sampler_share}))
    dist.destroy_process_group()


def restart_sampler() -> Callable[[], int]:
    """As in a program that has run for a while, and has no looks left from its beginning. What is returned tells the
    nanoseconds of CPU time that its thread has had."""
    recording: Any = recorder.current()
    recording._sampler.stop()
    sampler._MOST_SAMPLES, recording._sampler = 0.0, None
    before = set(os.listdir("/proc/self/task"))
    recording._start_sampler()
    (thread,) = set(os.listdir("/proc/self/task")) - before
    return lambda: int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=train_steps.BATCH)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    main(parser.parse_args())
