"""The launcher with many agents and no ranks: how soon all have answered, and how much memory the launcher uses."""

import argparse
import json
from dataclasses import asdict, dataclass

from rich.table import Table

from contenders import HERE, PROGRAMS
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, ratio, seconds, table, times

GOAL_AGENTS = 256
GOAL_S = 15.0
GOAL_BYTES = 200e6
GOAL_GROWTH = 1.5  # an agent among many may take so many times as long as one among few: about linear
MB = 1e6


@dataclass(frozen=True)
class Roll:
    """One roll call; see programs/start_agents.py."""

    hosts: int
    present_s: float
    pong_s: float
    rss_bytes: int
    peak_rss_bytes: int
    left_behind: int

    @property
    def per_host_s(self) -> float:
        return self.present_s / self.hosts


Rolls = dict[int, Roll | None]


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    rolls = {count: _call(jobs, count, options.timeout_s) for count in sorted(options.agents)}
    return Result([_table(rolls)], _goals(rolls), {str(count): roll and asdict(roll) for count, roll in rolls.items()})


def _call(jobs: Jobs, count: int, timeout_s: float) -> Roll | None:
    """In a new process: memory that an earlier measurement has freed would be counted."""
    with jobs.start([str(HERE / "python"), str(PROGRAMS / "start_agents.py"), str(count)]) as job:
        code = job.wait(timeout_s)
        if code != 0:
            progress(f"{count} agents: the launcher {how_it_failed(code)}:\n{job.last_words()}")
            return None
        figures = json.loads((job.folder / "figures.json").read_text())
        roll = Roll(**figures, left_behind=job.left_behind())
        progress(f"{count} agents answered in {seconds(roll.present_s)}")
        return roll


def _table(rolls: Rolls) -> Table:
    made = table(
        "Control plane alone: agents without ranks, on this machine",
        *("agents", "all answered", "per agent", "all pinged", "launcher's RSS", "its peak", "left running"),
    )
    for count, roll in rolls.items():
        made.add_row(str(count), *(_cells(roll) if roll else ["failed"] * 6))
    return made


def _cells(roll: Roll) -> list[str]:
    return [
        seconds(roll.present_s),
        f"{roll.per_host_s * 1e3:.1f} ms",
        f"{roll.pong_s * 1e3:.1f} ms",
        f"{roll.rss_bytes / MB:.0f} MB",
        f"{roll.peak_rss_bytes / MB:.0f} MB",
        str(roll.left_behind),
    ]


def _goals(rolls: Rolls) -> list[Goal]:
    if GOAL_AGENTS not in rolls:
        return []
    most, fewest = rolls[GOAL_AGENTS], rolls[min(rolls)]
    growth = ratio(most.per_host_s, fewest.per_host_s) if most and fewest else None
    left = sum(roll.left_behind for roll in rolls.values() if roll)
    return [
        Goal(
            f"{GOAL_AGENTS} agents have answered",
            f"≤ {GOAL_S:g} s",
            seconds(most.present_s if most else None),
            most.present_s <= GOAL_S if most else None,
        ),
        Goal(
            f"the launcher's memory with {GOAL_AGENTS} agents",
            f"≤ {GOAL_BYTES / MB:g} MB",
            f"{most.peak_rss_bytes / MB:.0f} MB" if most else "failed",
            most.peak_rss_bytes <= GOAL_BYTES if most else None,
        ),
        Goal(
            f"time per agent, {GOAL_AGENTS} against {min(rolls)}",
            f"≤ {GOAL_GROWTH:g} ×",
            times(growth),
            growth <= GOAL_GROWTH if growth else None,
        ),
        Goal("agents left running", "0", str(left), left == 0),
    ]
