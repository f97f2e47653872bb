"""An experiment inside a world that torchrun, `rollcall run` or another launcher has made: this process is a rank."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcall.coordinator.run_folder import RunFolder
from rollcall.initialization.environment import RankAssignment
from rollcall.lab.experiment import Experiment, Results, Settings
from rollcall.lab.runner import perform, recording, terminal, worlds
from rollcall.lab.runner.rank_world import meet


def run(
    experiment: Experiment,
    settings: Settings,
    place: RankAssignment,
    arm: str | None,
    results: Path | None,
    is_recorded: bool,
    as_json: bool,
    with_picture: bool,
) -> int:
    """This process is a rank already: measure with the others; rank 0 states the verdict."""
    settings = replace(settings, ranks=place.world_size, virtual_hosts=None)
    if experiment.arms and arm is None:
        # Each arm needs a world of its own: rank 0 makes them, the others have nothing to do.
        return perform.one(experiment, settings, as_json, with_picture) if place.rank == 0 else 0
    settings = perform.check(replace(experiment, arms=()), settings)
    if arm is not None:
        experiment.arm(arm)
    if results is not None:
        return _leave_value(experiment, settings, arm, results, is_recorded)
    with meet(settings.backend) as world:
        if arm is not None:
            value = experiment.measure(world, arm, settings.trials)
            world.logger.info(f"{arm}: {json.dumps(value)}")
            return 0
        value = experiment.measure(world, settings.trials, **settings.extras)
    with meet(settings.backend) as world:
        values = gather(world, value)
        own, folder = _agree_on_folder(world, experiment, settings)
    if "ROLLCALL_RUN" not in os.environ:
        recording.once_more(experiment, settings, place.rank, place.world_size, folder)
    return 0 if values is None else _conclude(experiment, settings, values, own, folder, as_json, with_picture)


def _agree_on_folder(world: Any, experiment: Experiment, settings: Settings) -> tuple[RunFolder | None, Path]:
    """The run's own; or, where another launcher has started us, a new one, which rank 0 makes and tells of."""
    if "ROLLCALL_RUN" in os.environ:
        return None, Path(os.environ["ROLLCALL_RUN"])
    import torch.distributed as dist

    own = perform.open_folder(experiment, settings) if world.is_first else None
    told = [str(own.path) if own else ""]
    dist.broadcast_object_list(told, device=world.device)
    return own, Path(told[0])


def _conclude(
    experiment: Experiment,
    settings: Settings,
    values: Results,
    own: RunFolder | None,
    folder: Path,
    as_json: bool,
    with_picture: bool,
) -> int:
    """On rank 0."""
    verdict, picture, told = perform.conclude(experiment, settings, values, folder, with_picture)
    if own:
        recording.note(experiment, values, own)
        own.save(outcome="failed" if verdict.exit_code else "ok", exit_code=verdict.exit_code)
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        terminal.say_verdict(experiment, settings, verdict, picture)
    return verdict.exit_code


def _leave_value(experiment: Experiment, settings: Settings, arm: str | None, folder: Path, is_recorded: bool) -> int:
    """For one who has started us by `rollcall run`, and waits: what this rank measured, or why it could not."""
    rank = os.environ["RANK"]
    left: dict[str, Any] = {}
    try:
        with meet(settings.backend) as world:
            words = (settings.trials,) if arm is None else (arm, settings.trials)
            left = {"value": experiment.measure(world, *words, **settings.extras)}
        if is_recorded:
            recording.once_more(experiment, settings, world.rank, world.size, folder)
    except Exception as error:
        left = {"error": worlds.first_line(error)}
        raise
    finally:
        (folder / f"rank-{rank}.json").write_text(json.dumps(left))
    return 0


def gather(world: Any, value: Any) -> Results | None:
    """The values of all ranks, on rank 0."""
    import torch.distributed as dist

    everyone: list[Any] | None = [None] * world.size if world.is_first else None
    dist.gather_object(value, everyone)
    return json.loads(json.dumps(everyone)) if everyone is not None else None
