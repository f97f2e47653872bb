"""kill -9 at random moments while saving: is there always a snapshot to continue from, and how old is it?"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

import rollcall
from jobs import Jobs
from results import Goal, Result, progress, table
from rollcall.functions.api import bound
from rollcall.functions.pool import RankPool

RANKS = 2
SAVES = 1000  # more than it can save before it is killed
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Kill:
    after_ms: float
    ranks: tuple[int, ...]
    begun: int  # the last snapshot whose writing had started
    loaded: int | None  # the one that could be loaded; None: none could, or it was not what was saved


def measure(_jobs: Jobs, options: argparse.Namespace) -> Result:
    chance = random.Random(0)
    server = RankPool(preload=("torch._dynamo", "rollcall.train.trainer"))
    folder = Path(tempfile.mkdtemp(prefix="rollcall-bench-"))
    try:
        kills = []
        for number in range(options.kills):
            kills.append(_kill(server, folder / str(number), chance))
            shutil.rmtree(folder / str(number), ignore_errors=True)
            if (number + 1) % 20 == 0:
                progress(f"{number + 1} of {options.kills}: {_count(kills)}")
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
    ages = Counter("nothing could be loaded" if each.loaded is None else _age(each) for each in kills)
    made = table(f"{len(kills)} × kill -9 of {RANKS} ranks, or one of them, while they save", "loaded", "times")
    for age, times in ages.most_common():
        made.add_row(age, str(times))
    good = sum(each.loaded is not None and each.begun - each.loaded <= 1 for each in kills)
    goal = Goal("killed while saving: loadable, and at most one older", "always", _count(kills), good == len(kills))
    return Result([made], [goal], {"kills": [vars(each) for each in kills]})


def _kill(server: RankPool, folder: Path, chance: random.Random) -> Kill:
    folder.mkdir()
    victims = tuple(sorted(chance.sample(range(RANKS), chance.choice((1, RANKS)))))
    after_s = chance.uniform(0.0, 0.25)
    killer = threading.Thread(target=_wait_and_kill, args=(folder, victims, after_s))
    killer.start()
    server.call(bound(partial(save_on_and_on, folder=folder), ()), RANKS, timeout_s=TIMEOUT_S, capture=True)
    killer.join()
    begun = int((folder / "begun").read_text())
    answers = server.call(bound(partial(load, folder=folder), ()), RANKS, timeout_s=TIMEOUT_S, capture=True)
    loaded = {answer.value for answer in answers}
    if len(loaded) > 1 or loaded == {None}:
        left = sorted(path.name for path in (folder / "snapshots").iterdir())
        progress(f"killed {victims} after {after_s * 1e3:.0f} ms, begun {begun}, on the disk {left}: {answers}")
    return Kill(after_s * 1e3, victims, begun, loaded.pop() if len(loaded) == 1 else None)


def _wait_and_kill(folder: Path, victims: tuple[int, ...], after_s: float) -> None:
    """Wait until there are two snapshots, so that one may be lost; then kill."""
    pids = [folder / f"pid-{rank}" for rank in victims]
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and not (
        all(path.exists() for path in pids) and (folder / "snapshots" / "step-00000002").exists()
    ):
        time.sleep(0.001)
    time.sleep(after_s)
    for path in pids:
        os.kill(int(path.read_text()), signal.SIGKILL)


def _make_model(world: rollcall.World) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = rollcall.wrap(nn.Sequential(*(nn.Linear(128, 128) for _ in range(4))), world)
    return model, torch.optim.AdamW(model.parameters())


def save_on_and_on(*, folder: Path) -> None:
    """Save snapshots without a pause; in each one, every parameter is the snapshot's number."""
    with rollcall.init() as world:
        model, optimizer = _make_model(world)
        snapshot = rollcall.Snapshot(folder / "snapshots", world, model, optimizer)
        (folder / f"pid-{world.rank}").write_text(str(os.getpid()))
        for step in range(1, SAVES):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(step)
            snapshot.save(step)
            if world.is_first:
                draft = folder / ".begun"
                draft.write_text(str(step))
                draft.replace(folder / "begun")
            snapshot.wait()


def load(*, folder: Path) -> int | None:
    with rollcall.init() as world:
        model, optimizer = _make_model(world)
        step = rollcall.Snapshot(folder / "snapshots", world, model, optimizer).load().step
        return step if all(bool((each == step).all()) for each in model.parameters()) else None


def _age(kill: Kill) -> str:
    assert kill.loaded is not None
    older = kill.begun - kill.loaded
    return "the last one begun" if older <= 0 else "the one before it" if older == 1 else f"one {older} older"


def _count(kills: list[Kill]) -> str:
    good = sum(each.loaded is not None and each.begun - each.loaded <= 1 for each in kills)
    return f"{good} of {len(kills)}"
