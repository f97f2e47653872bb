"""One experiment, or all of them: check the settings, measure, judge, draw, print.

What was measured stays in the run's folder: lab.json and pictures/.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcall.errors import RollcallError, UsageError, say
from rollcall.lab import NAMES, plots, progress
from rollcall.lab.experiment import Experiment, LabSettings, Results, load
from rollcall.lab.runner import run_folder, terminal, worlds
from rollcall.protocol.plan import MOST_RANKS_PER_HOST

DEFAULT_RANKS = 4
Report = Callable[[float], None]  # takes the number of worlds that are done, with the share of the current one


def check(experiment: Experiment, settings: LabSettings) -> LabSettings:
    """The settings, if this experiment can run with them."""
    if settings.trials < 1:
        raise UsageError(f"--trials {settings.trials} measures nothing: use 1 or more")
    if experiment.trials == 1 and settings.trials > 1:
        if os.environ.get("RANK", "0") == "0":  # under torchrun, one rank prints it
            say(f"{experiment.name} has the same result each time: it runs once, not {settings.trials} times")
        settings = replace(settings, trials=1)
    if settings.world_size < experiment.least_ranks:
        raise UsageError(
            f"{experiment.name} needs {experiment.least_ranks} ranks or more, and -n {settings.ranks} gives"
            f" {settings.world_size}: use -n {experiment.least_ranks}"
        )
    if settings.ranks > MOST_RANKS_PER_HOST:
        raise UsageError(f"-n {settings.ranks} is too many: up to {MOST_RANKS_PER_HOST} ranks can start on one host")
    if settings.backend is not None:
        from rollcall.initialization.process_group import check_backend  # here: it imports torch

        check_backend(settings.backend)
    own_hosts = max((case.virtual_hosts or 1 for case in experiment.cases), default=1)
    if own_hosts > 1 and settings.virtual_hosts:
        raise UsageError(f"{experiment.name} starts virtual hosts by itself: leave --virtual-hosts out")
    if settings.ranks % own_hosts:
        raise UsageError(
            f"{experiment.name} spreads its ranks over {own_hosts} hosts, and -n {settings.ranks} cannot be shared"
            f" evenly: use -n {settings.ranks + own_hosts - settings.ranks % own_hosts}"
        )
    experiment.check_options(settings.options)
    return settings


def one(experiment: Experiment, settings: LabSettings) -> int:
    """Run one experiment on ranks of its own; the exit code."""
    settings = check(experiment, settings)
    if settings.with_picture:
        plots.check_installed("use --no-picture")
    outcome = _perform(experiment, settings, experiment.name)
    if settings.as_json:
        print(json.dumps(outcome, indent=2))
    return 1 if outcome["violations"] else 0


def all_of_them(make_settings: Callable[[Experiment], LabSettings], as_json: bool) -> int:
    """Run the whole lab, one experiment after the other. If one fails, the next ones still run."""
    plans = _plans(make_settings)
    if plans[0][1].with_picture:
        plots.check_installed("use --no-picture")
    outcomes, failed, began_s = [], [], time.monotonic()
    for number, (experiment, settings) in enumerate(plans, 1):
        try:
            outcomes.append(_perform(experiment, settings, f"{experiment.name} ({number} of {len(plans)})"))
        except RollcallError as error:
            say(f"{experiment.name} could not be measured: {error}")
            failed.append(experiment.name)
    violated = [outcome["experiment"] for outcome in outcomes if outcome["violations"]]
    if as_json:
        print(json.dumps(outcomes, indent=2))
    else:
        problems = [f"an invariant was violated in {', '.join(violated)}"] if violated else []
        problems += [f"{', '.join(failed)} could not be measured"] if failed else []
        seconds = time.monotonic() - began_s
        print(f"\n{len(outcomes)} experiments in {seconds:.0f} s: " + ("; ".join(problems) or "all measured"))
    return 1 if violated or failed else 0


def _plans(make_settings: Callable[[Experiment], LabSettings]) -> list[tuple[Experiment, LabSettings]]:
    """The experiments that can run with what the user chose; of each other one, the reason is printed."""
    plans, refused = [], []
    for experiment in map(load, NAMES):
        try:
            plans.append((experiment, check(experiment, make_settings(experiment))))
        except UsageError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    for reason in refused:
        say(f"left out: {reason}")
    return plans


def collect(
    experiment: Experiment,
    settings: LabSettings,
    folder: Path,
    report: Report = lambda _: None,
    is_recorded: bool = False,
) -> Results:
    """What the ranks return: of one world, with a recorded trial or without, or of one world per case."""
    if not experiment.cases:
        with progress.follow(folder / "progress", report):
            return worlds.measure(experiment, settings, folder, is_recorded)
    results: dict[str, Any] = {}
    for case in experiment.cases:
        with progress.follow(folder / "progress", lambda share: report(len(results) + share)):
            result = worlds.measure_case(experiment, case, settings, run_folder.of_case(folder, case))
        results[case.name] = result
        report(len(results))
    return results


def _perform(experiment: Experiment, settings: LabSettings, title: str) -> dict[str, Any]:
    folder = run_folder.create(experiment, settings)
    began_s = time.monotonic()
    try:
        with terminal.progress_bar(title, len(experiment.cases) or 1) as report:
            results = collect(experiment, settings, folder.path, report, is_recorded=True)
        run_folder.complete(folder, experiment, results)
        outcome = conclude(experiment, settings, results, folder.path)
    except BaseException as error:
        ending = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        folder.save(outcome=ending, exit_code=1, seconds=time.monotonic() - began_s)
        raise
    exit_code = 1 if outcome["violations"] else 0
    folder.save(outcome="failed" if exit_code else "ok", exit_code=exit_code, seconds=time.monotonic() - began_s)
    return outcome


def conclude(experiment: Experiment, settings: LabSettings, results: Results, folder: Path) -> dict[str, Any]:
    """Judge, draw, print the verdict (unless all is printed as JSON later), and keep everything in the folder."""
    verdict = experiment.judge(results)
    picture = None
    if settings.with_picture:
        picture = folder / "pictures" / f"{experiment.name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        plots.save(experiment.draw, results, picture)
        # The report prints this text below the picture.
        sentences = (f"{text[0].upper()}{text[1:]}" for text in (experiment.question, verdict.sentence))
        picture.with_suffix(".txt").write_text(" ".join(sentences) + ".\n")
    outcome = {
        "experiment": experiment.name,
        "question": experiment.question,
        "ranks": settings.world_size,
        "trials": settings.trials,
        "virtual_hosts": settings.virtual_hosts,
        **verdict.to_dict(),
        "picture": str(picture) if picture else None,
        "results": results,
    }
    (folder / "lab.json").write_text(json.dumps(outcome, indent=2) + "\n")
    if not settings.as_json:
        terminal.print_verdict(experiment, settings, verdict, picture)
    return outcome
