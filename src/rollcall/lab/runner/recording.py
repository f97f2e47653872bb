"""What `rollcall report` and `rollcall explain` show of an experiment.

Where an experiment measures in one world, the same ranks meet once more, recorded, for one trial: a recorder beside
the trials that count would be measured with them. Where each arm has a world of its own, all of them are recorded,
since their recordings are what is judged; the run's own recording is that of the arm which shows most.
"""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall.errors import say
from rollcall.lab.experiment import Experiment, Results, Settings
from rollcall.lab.runner.rank_world import meet
from rollcall.protocol.log_files import LogFiles

if TYPE_CHECKING:
    from rollcall import World
    from rollcall.coordinator.run_folder import RunFolder

_ATTEMPT = 0


# ---- on a rank


def once_more(experiment: Experiment, settings: Settings, rank: int, world_size: int, folder: Path) -> None:
    """This rank has measured, and left its world: it meets the others again, and does one trial for the record."""
    with _recorded(rank, world_size, folder), meet(settings.backend) as world, _logged(world, folder):
        world.logger.info(world.info.model_dump_json(indent=4))
        if experiment.once is not None:
            experiment.once(world)
            world.barrier()
        experiment.measure(world, 1, **{**settings.extras, **experiment.shown_with})


@contextlib.contextmanager
def _recorded(rank: int, world_size: int, folder: Path) -> Iterator[None]:
    from rollcall.record import recorder

    if not folder.is_dir():  # it is on another machine's disk: the report names who is missing
        yield
        return
    recording = None
    try:
        recording = recorder.begin(folder, rank, world_size, _ATTEMPT)
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
    """What this rank says goes into the run's logs, with its time, as its output under `rollcall run` would."""
    logger, consoles = world.logger, world.logger.handlers[:]
    log = _Log(folder / "logs" / f"attempt-{_ATTEMPT}" / f"rank-{world.rank}.log")
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


# ---- in the run's folder


def note(experiment: Experiment, results: Results, folder: "RunFolder") -> None:
    """What is known of the recorded world beside its rings."""
    if not experiment.arms:
        folder.note_attempt(_ATTEMPT, exit_codes={str(rank): 0 for rank in range(len(results))})
        # On virtual hosts the ranks were started by a `rollcall run` of its own.
        folder.save(**_hosts(_facts(folder.path / "runs" / "latest")))
        return
    shown = Path(results[experiment.shown_arm]["folder"])
    for part in ("rings", "logs"):
        if (shown / part).is_dir():
            (folder.path / part).symlink_to((shown / part).relative_to(folder.path.resolve()))
    facts = _facts(shown)
    # That the arm hung does not make the lab's run one that hung.
    folder.note_attempt(_ATTEMPT, **facts["attempts"][_ATTEMPT], outcome=facts["outcome"])
    folder.save(**_hosts(facts))


def _facts(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((folder / "run.json").read_text()))
    return {}


def _hosts(facts: dict[str, Any]) -> dict[str, Any]:
    """Virtual hosts are this machine: they have one kernel and one clock, whatever was read over their link."""
    one_clock = {"clock_offset_ns": 0, "clock_error_ns": 0, "clock_readings": [[0, 0, 0]]}
    hosts = {name: {**host, **one_clock} for name, host in facts.get("hosts", {}).items()}
    return {"hosts": hosts} if hosts else {}
