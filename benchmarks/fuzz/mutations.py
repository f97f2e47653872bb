"""Chooses a bug for a program: which mutation, on which line and rank."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.fuzz import bugs
from benchmarks.fuzz.bugs import Make
from benchmarks.fuzz.guilt import Mutant
from benchmarks.fuzz.script import Call, Script

_TRIES = 8
_ENOUGH_TURNS = 5  # of a loop, for a rank that is always late
_STOPPABLE = ("collective", "framework", "init", "group", "data", "p2p")

_BY_SORT: dict[str, dict[str, Make]] = {
    "collective": {
        "skip": bugs.skip,
        "repeat": bugs.repeat,
        "swap": bugs.swap,
        "break": bugs.leave_loop,
        "receive": bugs.receive,
    },
    "framework": {"skip framework": bugs.skip, "break": bugs.leave_loop},
    "p2p": {"skip send or receive": bugs.skip_p2p},
    "wait": {"skip wait": bugs.skip_wait, "overwrite": bugs.overwrite},
}
_BEFORE: dict[str, Make] = {
    "raise": bugs.insert(
        ("rank-failed",),
        'raise ValueError("bad record in shard 7")',
        '{}["tokenizer"]',
        "torch.ones(3) @ torch.ones(4)",
    ),
    "exit": bugs.insert(("rank-exited-early",), "sys.exit(0)", "sys.exit()"),
    "exit with code": bugs.insert(("rank-exited-early", "rank-failed"), "sys.exit(3)", "os._exit(4)"),
    "exit in thread": bugs.insert(
        ("rank-exited-early", "rank-failed"), "threading.Thread(target=os._exit, args=(5,)).start(), time.sleep(60)"
    ),
    "kill": bugs.insert(("rank-killed",), "os.kill(os.getpid(), signal.SIGKILL)", "os.abort()"),
    "stop": bugs.insert(("stopped-rank",), "os.kill(os.getpid(), signal.SIGSTOP)"),
    "sleep": bugs.insert(
        ("busy-rank",),
        "time.sleep(600)",
        "queue.Queue().get()",
        "threading.Semaphore(0).acquire()",
        "threading.Event().wait()",
    ),
    "compute": bugs.insert(("busy-rank",), "sum(i * i for i in range(10**10))"),
}
# Every line can be preceded by the first ones. With equal weights they would be most of the mutants.
_WEIGHTS = {
    **dict.fromkeys(_BEFORE, 0.25),
    "compute": 0.06,
    **dict.fromkeys(("ddp-model-mismatch", "ddp-uneven-inputs", "ddp-unused-parameter", "group-incomplete"), 4.0),
    **dict.fromkeys(("mismatched-root", "mismatched-splits", "p2p-deadlock", "straggler", "swap", "wrong-peer"), 3.0),
}


@dataclass(frozen=True)
class Chance:
    """One way to break a program."""

    mutation: str
    place: int
    make: Make


def mutate(script: Script) -> Mutant | None:
    """The seed of the script also decides on its bug. None if no mutation fits."""
    rng = random.Random(f"bug {script.seed}")
    chances = [chance for place, _, call in script.calls() for chance in _chances(place, call)]
    names = sorted({chance.mutation for chance in chances})
    for _ in range(_TRIES):
        name = rng.choices(names, [_WEIGHTS.get(name, 1.0) for name in names])[0]
        chance = rng.choice([chance for chance in chances if chance.mutation == name])
        call = script.lines[chance.place].call
        assert call is not None
        mutant = chance.make(script, chance.place, rng.choice(call.ranks), rng)
        if mutant is not None:
            return replace(mutant, mutation=name)
    return None


def _chances(place: int, call: Call) -> Iterator[Chance]:
    for kind in sorted({kind for slot in call.slots.values() for kind in slot.wrong}):
        yield Chance(kind, place, bugs.wrong_argument(kind))
    for kind in sorted(call.instead):
        yield Chance(kind, place, bugs.other_call(kind))
    for name, make in _BY_SORT.get(call.sort, {}).items():
        yield Chance(name, place, make)
    for name, make in _BEFORE.items() if call.sort in _STOPPABLE else ():
        yield Chance(name, place, make)
    if call.loop and call.loop.turns >= _ENOUGH_TURNS and call.sort in ("collective", "framework"):
        yield Chance("straggler", place, bugs.straggle)
