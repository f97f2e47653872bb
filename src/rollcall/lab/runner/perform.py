"""An experiment on ranks of its own, or all of them.

measure → judge → draw → say. What was measured stays in the run's folder: lab.json and pictures/.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from rollcall.coordinator.run_folder import RunFolder, command_line
from rollcall.errors import RollcallError, UsageError, say
from rollcall.lab import NAMES, plots, progress
from rollcall.lab.experiment import Experiment, Results, Settings, Verdict, load
from rollcall.lab.runner import recording, terminal
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import MOST_RANKS_PER_HOST, THIS_HOST, Plan, Program

DEFAULT_RANKS = 4
Tell = Callable[[float], None]  # hears how many worlds are over, and what share of the next


def check(experiment: Experiment, settings: Settings) -> Settings:
    """The settings, if this experiment can be run with them."""
    if settings.trials < 1:
        raise UsageError(f"--trials {settings.trials} measures nothing: use 1 or more")
    if experiment.trials == 1 and settings.trials > 1:
        if os.environ.get("RANK", "0") == "0":  # under torchrun, one of them is enough
            say(f"{experiment.name} comes out the same each time: it is done once, not {settings.trials} times")
        settings = replace(settings, trials=1)
    if settings.world_size < experiment.least_ranks:
        raise UsageError(
            f"{experiment.name} needs {experiment.least_ranks} ranks or more, and -n {settings.ranks} gives"
            f" {settings.world_size}: use -n {experiment.least_ranks}"
        )
    if settings.ranks > MOST_RANKS_PER_HOST:
        raise UsageError(f"-n {settings.ranks} is too many: up to {MOST_RANKS_PER_HOST} ranks can start on one host")
    if settings.backend is not None:
        from rollcall.initialization.process_group import check_backend

        check_backend(settings.backend)
    own_hosts = max((arm.virtual_hosts or 1 for arm in experiment.arms), default=1)
    if own_hosts > 1 and settings.virtual_hosts:
        raise UsageError(f"{experiment.name} compares hosts by itself: leave --virtual-hosts out")
    if settings.ranks % own_hosts:
        raise UsageError(
            f"{experiment.name} spreads its ranks over {own_hosts} hosts, and -n {settings.ranks} cannot be shared"
            f" evenly: use -n {settings.ranks + own_hosts - settings.ranks % own_hosts}"
        )
    for parameter in settings.extras:
        if not experiment.takes(parameter):
            raise UsageError(f"--{parameter} is not for {experiment.name}: leave it out")
    return settings


def one(experiment: Experiment, settings: Settings, as_json: bool, with_picture: bool) -> int:
    """Run one experiment on ranks of its own, and state the verdict."""
    settings = check(experiment, settings)
    if with_picture:
        plots.check_installed()
    with _progress(len(experiment.arms) or 1) as bar:
        bar.begin(experiment)
        told, tell = _perform(experiment, settings, bar, with_picture)
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        tell(None)
    return 1 if told["violations"] else 0


def all_of_them(make: Callable[[Experiment], Settings], as_json: bool, with_picture: bool) -> int:
    """The whole lab, one experiment after the other. One that fails does not keep the others from running."""
    if with_picture:
        plots.check_installed()
    plans = _plans(make)
    everything, failed, begun = [], [], time.monotonic()
    with _progress(sum(len(experiment.arms) or 1 for experiment, _ in plans)) as bar:
        for experiment, settings in plans:
            bar.begin(experiment)
            try:
                told, tell = _perform(experiment, settings, bar, with_picture)
            except RollcallError as error:
                say(f"{experiment.name} could not be measured: {error}")
                failed.append(experiment.name)
                continue
            everything.append(told)
            if not as_json:
                tell(bar.console)
    violated = [told["experiment"] for told in everything if told["violations"]]
    if as_json:
        print(json.dumps(everything, indent=2))
    else:
        took = f"{len(everything)} experiments in {time.monotonic() - begun:.0f} s"
        bad = [f"an invariant was violated in {', '.join(violated)}"] if violated else []
        bad += [f"{', '.join(failed)} could not be measured"] if failed else []
        print(f"\n{took}: " + ("; ".join(bad) or "all measured"))
    return 1 if violated or failed else 0


def _plans(make: Callable[[Experiment], Settings]) -> list[tuple[Experiment, Settings]]:
    """Those that can be run with what the user chose; of the others it is said why not."""
    plans, refused = [], []
    for experiment in map(load, NAMES):
        try:
            plans.append((experiment, check(experiment, make(experiment))))
        except UsageError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    for reason in refused:
        say(f"left out: {reason}")
    return plans


def collect(
    experiment: Experiment, settings: Settings, folder: Path, tell: Tell = lambda _: None, is_recorded: bool = False
) -> Results:
    """What the ranks bring back: from one world, recorded afterwards or not, or from one world per arm."""
    from rollcall.lab.runner import worlds

    if not experiment.arms:
        with progress.follow(folder / "progress", tell):
            return worlds.measure(experiment, settings, folder, is_recorded)
    endings: dict[str, Any] = {}
    for arm in experiment.arms:
        with progress.follow(folder / "progress", lambda share: tell(len(endings) + share)):
            ending = worlds.measure_arm(experiment, arm, settings, folder / "arms" / _folder_name(arm.name))
        endings[arm.name] = ending
        tell(len(endings))
    return endings


def _folder_name(arm: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in arm)


def _perform(
    experiment: Experiment, settings: Settings, bar: "_Bar", with_picture: bool
) -> tuple[dict[str, Any], Callable[[Console | None], None]]:
    folder = open_folder(experiment, settings)
    begun = time.monotonic()
    try:
        results = collect(experiment, settings, folder.path, bar.tell, is_recorded=True)
        recording.note(experiment, results, folder)
        verdict, picture, told = conclude(experiment, settings, results, folder.path, with_picture)
    except BaseException as error:
        outcome = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        folder.save(outcome=outcome, exit_code=1, seconds=time.monotonic() - begun)
        raise
    folder.save(
        outcome="failed" if verdict.exit_code else "ok", exit_code=verdict.exit_code, seconds=time.monotonic() - begun
    )
    return told, lambda console: terminal.say_verdict(experiment, settings, verdict, picture, console)


def conclude(
    experiment: Experiment, settings: Settings, results: Results, folder: Path, with_picture: bool
) -> tuple[Verdict, Path | None, dict[str, Any]]:
    """Judge, draw, and keep everything in a folder."""
    verdict = experiment.judge(results)
    picture = None
    if with_picture:
        picture = folder / "pictures" / f"{experiment.name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        plots.save(experiment.draw, results, picture)
        # The report shows the picture with these words.
        words = (f"{text[0].upper()}{text[1:]}" for text in (experiment.question, verdict.sentence))
        picture.with_suffix(".txt").write_text(" ".join(words) + ".\n")
    told = terminal.to_json(experiment, settings, verdict, results, picture)
    (folder / "lab.json").write_text(json.dumps(told, indent=2) + "\n")
    return verdict, picture, told


def open_folder(experiment: Experiment, settings: Settings) -> RunFolder:
    plan = Plan(
        Program("module", f"lab-{experiment.name}"),
        hosts=(Host(THIS_HOST, settings.world_size),),
        run_id=f"lab-{experiment.name}",
        cwd=os.getcwd(),
    )
    # Of the whole lab each run says what it is: the command that does this part of it again.
    command = [experiment.name if word == "all" else word for word in command_line()]
    folder = RunFolder.create(plan, command)
    folder.note_attempt(0, world_size=settings.world_size)
    return folder


class _Bar:
    def __init__(self, progress: Progress, total: int) -> None:
        # What is said meanwhile goes above the bar; or, where stdout is a file, into it.
        self.console = progress.console if progress.console.file is sys.stdout else None
        self._progress = progress
        self._task = progress.add_task("", total=total)
        self._over = self._next = 0  # worlds: those before this experiment, and those after it
        self._told = 0.0

    def begin(self, experiment: Experiment) -> None:
        self._over, self._next = self._next, self._next + (len(experiment.arms) or 1)
        self._told = 0.0
        self._progress.update(self._task, description=experiment.name, completed=self._over)

    def tell(self, worlds: float) -> None:
        """It never goes back, though a recorded trial may come after all the others."""
        self._told = max(worlds, self._told)
        self._progress.update(self._task, completed=min(self._over + self._told, self._next))


@contextmanager
def _progress(total: int) -> Iterator[_Bar]:
    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}[/]"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=not sys.stdout.isatty(), highlight=False, soft_wrap=True)
    with Progress(*columns, console=console, transient=True) as shown:
        yield _Bar(shown, total)
