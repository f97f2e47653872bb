"""An experiment on ranks that torchrun, `rollcall run` or another launcher has started: this process is one of them."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcall.coordinator.run_folder import RunFolder
from rollcall.initialization import environment
from rollcall.lab.experiment import Experiment, LabSettings
from rollcall.lab.runner import on_rank, perform, run_folder


def run(experiment: Experiment, settings: LabSettings, rank: int, case: str | None, values_folder: Path | None) -> int:
    """Measure with the other ranks; rank 0 prints the verdict."""
    if experiment.cases and case is None:
        # Each case needs ranks of its own: rank 0 starts them, and the ranks that are there have nothing to do.
        return perform.one(experiment, settings) if rank == 0 else 0
    settings = perform.check(replace(experiment, cases=()), settings)
    if case is not None:
        experiment.case(case)
    if values_folder is not None:
        return _write_value(experiment, settings, rank, case, values_folder)
    if case is not None:
        with on_rank.join(settings.backend) as world:
            world.logger.info(f"{case}: {json.dumps(experiment.measure(world, case, settings.trials))}")
        return 0
    value = on_rank.measure(experiment, settings)
    with on_rank.join(settings.backend) as world:
        values = on_rank.gather(world, value)
        own_folder, folder = _agree_on_folder(world, experiment, settings)
    if not environment.is_ours(os.environ):
        on_rank.record_one_trial(experiment, settings, rank, settings.ranks, folder)
    if values is None:
        return 0
    outcome = perform.conclude(experiment, settings, values, folder)
    exit_code = 1 if outcome["violations"] else 0
    if own_folder:
        run_folder.complete(own_folder, experiment, values)
        own_folder.save(outcome="failed" if exit_code else "ok", exit_code=exit_code)
    if settings.as_json:
        print(json.dumps(outcome, indent=2))
    return exit_code


def _agree_on_folder(world: Any, experiment: Experiment, settings: LabSettings) -> tuple[RunFolder | None, Path]:
    """The folder of `rollcall run`; under another launcher a new one, which rank 0 creates."""
    if environment.is_ours(os.environ):
        return None, Path(os.environ["ROLLCALL_RUN"])
    import torch.distributed as dist  # here: the launcher starts faster without torch

    own_folder = run_folder.create(experiment, settings) if world.is_first else None
    path = [str(own_folder.path) if own_folder else ""]
    dist.broadcast_object_list(path, device=world.device)
    return own_folder, Path(path[0])


def _write_value(experiment: Experiment, settings: LabSettings, rank: int, case: str | None, folder: Path) -> int:
    """The lab has started this rank by `rollcall run`, and reads from a file what it measured."""
    value = on_rank.measure(experiment, settings, case)
    if case is None:
        on_rank.record_one_trial(experiment, settings, rank, settings.ranks, folder)
    (folder / f"rank-{rank}.json").write_text(json.dumps(value))
    return 0
