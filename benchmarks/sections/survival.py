"""One of four ranks of a training is killed: how soon is the next step done, and does it always come to that?"""

import argparse
import math
from dataclasses import asdict, replace

from contenders import ROLLCALL, TORCHRUN, TORCHRUN_UNSHARED, Contender
from jobs import Jobs
from results import Goal, Result, median_or_none, seconds, times
from sections.recovery import Try, show, take_turns

FASTER = 3.0
OURS = replace(ROLLCALL, name="rollcall.Trainer")
THEIRS = tuple(replace(each, name=f"tutorial's script, {each.name}") for each in (TORCHRUN, TORCHRUN_UNSHARED))


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    programs: dict[Contender, str] = dict.fromkeys(THEIRS, "training/survive_tutorial.py")
    programs[OURS] = "training/survive_rollcall.py"
    wanted = {each: options.tries if each is OURS else options.torchrun_tries for each in programs}
    tries = take_turns(jobs, wanted, options.try_timeout_s, programs)
    usual_s = {each: median_or_none([one.seconds for one in done]) for each, done in tries.items()}
    fastest_s = min(usual_s[each] or math.inf for each in THEIRS)
    return Result(
        [show(tries, "SIGKILL of one of 4 ranks to the next step of all, a snapshot every 10 steps")],
        [_every_time(tries[OURS]), _sooner(fastest_s, usual_s[OURS])],
        {each.name: [asdict(one) for one in done] for each, done in tries.items()},
    )


def _every_time(ours: list[Try]) -> Goal:
    good = sum(one.at_once for one in ours)
    return Goal("a killed rank: the next step came", "every time", f"{good} of {len(ours)}", good == len(ours))


def _sooner(their_s: float, our_s: float | None) -> Goal:
    if our_s is None or their_s == math.inf:
        return Goal("time to the next step", f"≥ {FASTER:g} × faster", seconds(our_s), None)
    faster = their_s / our_s
    said = f"{times(faster)} ({seconds(our_s)} against {seconds(their_s)})"
    return Goal("time to the next step", f"≥ {FASTER:g} × faster", said, faster >= FASTER)
