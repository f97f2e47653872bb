"""A correct program from a seed."""

import random
import re
from collections.abc import Callable
from dataclasses import replace

from benchmarks.fuzz.parts import HEAVY, LIGHT, groups
from benchmarks.fuzz.script import Call, Line, Script, Writer

_WORLD_SIZES = (2, 3, 3, 3, 4, 4, 4, 4, 6)
_IMPORTS = """\
import os
import queue
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as checkpoint
import torch.distributed.nn.functional as distnn
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
"""

Part = Callable[[Writer], None]


def make(seed: int) -> Script:
    """The same seed makes the same program."""
    rng = random.Random(seed)
    writer = Writer(rng, rng.choice(_WORLD_SIZES))
    parts = _choose(rng, writer.world_size)
    for part in parts:
        _write(writer, part)
    if rng.random() < 0.7:
        writer.call("dist.barrier()")
    names = tuple(part.__name__ for part in parts)
    return Script(seed, writer.world_size, names, _assemble(seed, names, writer, has_main=rng.random() < 0.5))


def _choose(rng: random.Random, world_size: int) -> list[Part]:
    """One to four light parts, with up to two of training among them."""
    has_factors = world_size > 3  # the world sizes above three can be split into equal groups
    light: list[Part] = [part for part in LIGHT if has_factors or part not in groups.NEEDS_FACTORS]
    chosen: list[Part] = rng.sample(light, rng.randint(1, 4)) + rng.sample(HEAVY, rng.choice((0, 0, 1, 1, 2)))
    rng.shuffle(chosen)
    return chosen


def _write(writer: Writer, part: Part) -> None:
    """The part, sometimes in a loop. Not training: each turn would build its modules anew."""
    if part in LIGHT and writer.rng.random() < 0.25:
        with writer.loop(writer.name("epoch", "cycle"), writer.size(2, 3)):
            part(writer)
    else:
        part(writer)
    writer.line()


def _assemble(seed: int, names: tuple[str, ...], writer: Writer, has_main: bool) -> tuple[Line, ...]:
    everyone = writer.everyone
    head = [Line(0, text) for text in (f'"""Seed {seed} on {len(everyone)} ranks: {", ".join(names)}."""', "")]
    head += _imports("\n".join(line.text for line in (*writer.helpers, *writer.body)))
    head += [Line(0, ""), Line(0, 'dist.init_process_group("gloo")', Call("init", everyone, (everyone,)))]
    head += [Line(0, "rank, world = dist.get_rank(), dist.get_world_size()")]
    head += [Line(0, f"torch.manual_seed({seed} + rank)"), Line(0, ""), Line(0, "")]
    body = [Line(0, "results = []"), *writer.body, Line(0, "print(rank, results)")]
    if has_main:
        body = [Line(0, "def main():"), *(replace(line, depth=line.depth + 1) for line in body)]
        body += [Line(0, ""), Line(0, ""), Line(0, "main()")]
    return (*head, *writer.helpers, *body, Line(0, "dist.destroy_process_group()"))


def _imports(text: str) -> list[Line]:
    """The standard library's, which mutations need; of torch what the program uses."""
    return [Line(0, line) for line in _IMPORTS.splitlines() if "torch." not in line or _names(line) & _words(text)]


def _names(line: str) -> set[str]:
    """The names that an import binds."""
    return {part.rpartition(" as ")[2] for part in line.rpartition("import ")[2].split(", ")}


def _words(text: str) -> set[str]:
    return {"dist", *re.findall(r"\w+", text)}
