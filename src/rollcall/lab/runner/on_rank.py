"""What each rank of an experiment does: join the world, measure, and one more trial for the recording."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall.errors import say
from rollcall.lab import progress
from rollcall.lab.experiment import Experiment, LabSettings, Results, load
from rollcall.protocol.log_files import LogFiles

if TYPE_CHECKING:
    from rollcall import World

ATTEMPT = 0


@contextlib.contextmanager
def join(backend: str | None, init_method: str = "env://") -> "Iterator[World]":
    """The world of all ranks. An experiment may leave it by itself, as hello does."""
    from rollcall.initialization.process_group import init  # here, and below: the launcher starts faster without torch

    with init(backend, init_method=init_method) as world:
        world.barrier()  # a rank that is done early must not leave while others still connect
        yield world


def measure(experiment: Experiment, settings: LabSettings, case: str | None = None) -> Any:
    """Join the world, measure, leave."""
    with join(settings.backend) as world:
        if case is not None:
            return experiment.measure(world, case, settings.trials)
        return experiment.measure(world, settings.trials, **settings.options)


def measure_and_record(name: str, settings: LabSettings, folder: Path | None, rank: int) -> Any:
    """Measure; then, if there is a folder for it, record one more trial."""
    experiment = load(name)
    value = measure(experiment, settings)
    if folder is not None:
        record_one_trial(experiment, settings, rank, settings.ranks, folder)
    return value


def measure_case(name: str, case: str, settings: LabSettings, folder: Path, rank: int) -> Any:
    """Measure one case, recorded: its recording is what is judged."""
    with _recorded(rank, settings.ranks, folder):
        return measure(load(name), settings, case)


def record_one_trial(experiment: Experiment, settings: LabSettings, rank: int, world_size: int, folder: Path) -> None:
    """Join the world again for one recorded trial. The trials that count ran without a recorder, which costs time."""
    progress.stop()
    with _recorded(rank, world_size, folder), join(settings.backend) as world, _logged(world, folder):
        world.logger.info(world.info.model_dump_json(indent=4))
        if experiment.once is not None:
            experiment.once(world)
            world.barrier()
        experiment.measure(world, 1, **{**settings.options, **experiment.reported_with})


def gather(world: "World", value: Any) -> Results | None:
    """The values of all ranks, on rank 0."""
    import torch.distributed as dist  # here: the launcher starts faster without torch

    values: list[Any] | None = [None] * world.size if world.is_first else None
    dist.gather_object(value, values)
    return None if values is None else through_json(values)


def through_json(value: Any) -> Any:
    """The value as it is after being written to a file and read again: judges see the same in both cases."""
    return json.loads(json.dumps(value))


@contextlib.contextmanager
def _recorded(rank: int, world_size: int, folder: Path) -> Iterator[None]:
    from rollcall.record import recorder  # here: the launcher starts faster without it

    recording = None
    if folder.is_dir():  # else it is on another machine's disk: the report says which ranks are missing
        try:
            recording = recorder.begin(folder, rank, world_size, ATTEMPT)
        except OSError as error:
            say(f"rank {rank} is not recorded ({error.strerror})")
    try:
        yield
    except BaseException as error:
        if recording is not None:
            recording.note_end(1, error)
        raise
    if recording is not None:
        recording.note_end(0, None)


@contextlib.contextmanager
def _logged(world: "World", folder: Path) -> Iterator[None]:
    """Log lines of this rank go into the run's logs, with their time, as its output under `rollcall run` would."""
    logger, consoles = world.logger, world.logger.handlers[:]
    log = _Log(folder / "logs" / f"attempt-{ATTEMPT}" / f"rank-{world.rank}.log")
    log.setFormatter(consoles[0].formatter)
    logger.handlers[:] = [log] if folder.is_dir() else []
    try:
        yield
    finally:
        logger.handlers[:] = consoles
        log.close()


class _Log(logging.Handler):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._files = path, LogFiles(say)

    def emit(self, record: logging.LogRecord) -> None:
        self._files.write(self._path, (self.format(record) + "\n").encode())

    def close(self) -> None:
        self._files.close()
        super().close()
