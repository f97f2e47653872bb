"""What recording costs a DDP training step on two ranks, beside torch.profiler and TORCH_DISTRIBUTED_DEBUG=DETAIL.

Programs of their own tell the big differences, and that results are the same. They do not tell one percent: two starts
of one program differ by several, for good. So the goal is measured in one process, recording on and off in turn, in
blocks so short that the machine has no time to change its pace; a run without any difference says 0.1 to 0.3 % then.
"""

import argparse
import contextlib
import json
import math
from dataclasses import asdict, dataclass, field
from statistics import mean, median, quantiles, stdev

from rich.table import Table

from contenders import PROGRAMS, ROLLCALL
from jobs import Job, Jobs
from programs import turns
from results import Goal, Result, how_it_failed, median_or_none, progress, table

MOST = {"digits": 0.005, "ten-million": 0.002}
RANKS = 2
PATIENCE_S = 60.0  # for a program to start, or to run a block
PLAIN = "nothing"


@dataclass(frozen=True)
class Watcher:
    """A tool that watches the training: options of the launcher and of the program, and variables."""

    name: str
    launch: tuple[str, ...] = ("--no-record",)
    program: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


WATCHERS = (
    Watcher(PLAIN),
    Watcher("rollcall", launch=()),
    Watcher("torch.profiler", program=("--profile",)),
    Watcher("TORCH_DISTRIBUTED_DEBUG=DETAIL", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
)
STEPS = {
    "digits": 10,
    "ten-million": 1,
}  # of a block: short, since the speed of the machine changes all the time
# For all tools: large blocks of memory are kept. Otherwise a step has 7,000 to 9,000 page faults, by chance, and its
# time varies by five percent.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
SWITCHED_STEPS = {"digits": 5, "ten-million": 1}  # of a block in one process
Round = dict[str, float]


@dataclass
class Found:
    """Of one model: microseconds of a step per block and watcher; per run, what else was found."""

    rounds: list[Round] = field(default_factory=list)
    digests: dict[str, set[str]] = field(default_factory=dict)
    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    switched: list["Switched"] = field(default_factory=list)


@dataclass(frozen=True)
class Switched:
    """One start, whose hooks were on and off in turn: microseconds of a step per block. The sampler was there all the
    time, and its thread had this share of it."""

    on_us: list[float]
    off_us: list[float]
    sampler: float

    @property
    def hooks(self) -> float:
        return median(on / off - 1 for on, off in zip(self.on_us, self.off_us, strict=True))

    @property
    def longer(self) -> float:
        """The worst case: all ranks wait for the sampler."""
        return self.hooks + self.sampler


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    tables, goals, figures = [], [], {}
    for model in STEPS:
        found = Found()
        for number in range(options.step_repeats):
            progress(f"{model}, run {number + 1} of {options.step_repeats}")
            _take_turns(jobs, model, options, found)
        for number in range(options.step_starts):
            progress(f"{model}, recording on and off, start {number + 1} of {options.step_starts}")
            _switch(jobs, model, options, found)
        tables += [_table(model, found), _switched_table(model, found)]
        goals += _goals(model, found)
        figures[model] = {
            "rounds_us": found.rounds,
            "cpu_us": found.cpu_us,
            "switched": [asdict(each) for each in found.switched],
        }
    return Result(tables, goals, figures)


def _take_turns(jobs: Jobs, model: str, options: argparse.Namespace, found: Found) -> None:
    """The programs of all tools run at the same time, and take turns, a block of steps each."""
    with contextlib.ExitStack() as stack:
        players = [stack.enter_context(turns.Player(PATIENCE_S)) for _ in WATCHERS]
        running = [
            stack.enter_context(_start(jobs, model, watcher, player.port, options.step_blocks))
            for watcher, player in zip(WATCHERS, players, strict=True)
        ]
        for player, job in zip(players, running, strict=True):
            player.is_there = job.runs
        rounds = turns.take_turns(players, options.step_blocks)
        for watcher, job in zip(WATCHERS, running, strict=True):
            _note_end(job, watcher, options.timeout_s, found)
    for steps_ns in rounds:
        told = zip(WATCHERS, steps_ns, strict=True)
        found.rounds.append({watcher.name: ns / 1000 for watcher, ns in told if ns is not None})


def _start(jobs: Jobs, model: str, watcher: Watcher, port: int, blocks: int) -> Job:
    words = [
        str(ROLLCALL.executable),
        "run",
        "-n",
        str(RANKS),
        *watcher.launch,
        str(PROGRAMS / "train_steps.py"),
        model,
    ]
    words += ["--blocks", str(blocks), "--steps", str(STEPS[model]), "--port", str(port), *watcher.program]
    return jobs.start(words, OMP_NUM_THREADS="1", **MALLOC, **watcher.env)


def _note_end(job: Job, watcher: Watcher, timeout_s: float, found: Found) -> None:
    code = job.wait(timeout_s)
    rings = len(list(job.folder.glob("rollcall/runs/latest/rings/*/*.ring")))
    if code != 0 or rings != (0 if "--no-record" in watcher.launch else RANKS):
        progress(f"with {watcher.name} it {how_it_failed(code)} and left {rings} rings:\n{job.last_words()}")
        return
    told = json.loads((job.folder / "rank-0.json").read_text())
    found.digests.setdefault(watcher.name, set()).add(told["digest"])
    found.cpu_us.setdefault(watcher.name, []).append(told["cpu_ns"] / 1000)


def _switch(jobs: Jobs, model: str, options: argparse.Namespace, found: Found) -> None:
    words = [str(ROLLCALL.executable), "run", "-n", str(RANKS), str(PROGRAMS / "train_on_off.py"), model]
    pairs = options.step_pairs if model == "digits" else max(1, options.step_pairs // 5)
    words += ["--pairs", str(pairs), "--steps", str(SWITCHED_STEPS[model])]
    with jobs.start(words, OMP_NUM_THREADS="1", **MALLOC) as job:
        code = job.wait(options.timeout_s)
        if code != 0:
            progress(f"with the recording on and off it {how_it_failed(code)}:\n{job.last_words()}")
            return
        told = json.loads((job.folder / "on-off.json").read_text())
    on_us, off_us = ([ns / 1000 for ns in told[way]] for way in ("on", "off"))
    found.switched.append(Switched(on_us, off_us, told["sampler"]))


def _ratios(found: Found, name: str) -> list[float]:
    """Time relative to no tool, block by block: disturbances on the machine affect both."""
    return [each[name] / each[PLAIN] - 1 for each in found.rounds if name in each and PLAIN in each]


def _table(model: str, found: Found) -> Table:
    made = table(
        f"A DDP training step, {model}, {RANKS} gloo ranks, {len(found.rounds)} blocks of {STEPS[model]} in turn",
        *("watched by", "a step", "longer", "a quarter below", "a quarter above", "CPU time", "same results"),
    )
    plain_cpu_us = median_or_none(found.cpu_us.get(PLAIN, []))
    for watcher in WATCHERS:
        step_us, ratios = (
            median_or_none([each.get(watcher.name) for each in found.rounds]),
            _ratios(found, watcher.name),
        )
        cpu_us = median_or_none(found.cpu_us.get(watcher.name, []))
        digests = found.digests.get(watcher.name)
        made.add_row(
            watcher.name,
            "failed" if step_us is None else f"{step_us:,.0f} µs",
            *([f"{each:+.1%}" for each in _spread(ratios)] if len(ratios) > 1 else ["–"] * 3),
            "–" if cpu_us is None or plain_cpu_us is None else f"{cpu_us / plain_cpu_us - 1:+.1%}",
            "–" if not digests else "yes" if digests == found.digests.get(PLAIN) else "NO",
        )
    return made


def _longer(found: Found) -> tuple[float, float] | None:
    """How much longer it takes, over all starts, with the error."""
    starts = [each.longer for each in found.switched]
    return (mean(starts), stdev(starts) / math.sqrt(len(starts))) if len(starts) > 1 else None


def _switched_table(model: str, found: Found) -> Table:
    made = table(
        f"In one process, recording on and off in turn, blocks of {SWITCHED_STEPS[model]}",
        *("start", "pairs", "without", "with", "by hooks", "by the sampler", "longer"),
    )
    for number, each in enumerate(found.switched, start=1):
        with_it, without = (f"{median(us):,.0f} µs" for us in (each.on_us, each.off_us))
        parts = (f"{part:+.2%}" for part in (each.hooks, each.sampler, each.longer))
        made.add_row(str(number), str(len(each.on_us)), without, with_it, *parts)
    return made


def _spread(ratios: list[float]) -> tuple[float, float, float]:
    low, _, high = quantiles(ratios, n=4)
    return median(ratios), low, high


def _goals(model: str, found: Found) -> list[Goal]:
    longer = _longer(found)
    both = [found.digests.get(name, set()) for name in (PLAIN, "rollcall")]
    same = both[0] == both[1] and len(both[0]) == 1
    return [
        Goal(
            f"recording a DDP step, {model}",
            f"≤ {MOST[model]:.1%}",
            "not measured" if longer is None else f"{longer[0]:+.2%} ± {longer[1]:.2%}",
            None if longer is None or longer[1] > MOST[model] else longer[0] <= MOST[model],
        ),
        Goal(
            f"results of {model} with and without",
            "bit-identical",
            "the same" if same else "not the same" if all(both) else "failed",
            None if not all(both) else same,
        ),
    ]
