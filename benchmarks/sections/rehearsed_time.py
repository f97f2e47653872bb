"""The estimate of an op's time, beside gloo ranks on virtual hosts whose links are slow."""

import argparse
import contextlib
import os
from dataclasses import replace
from statistics import median
from typing import Any

from jobs import Jobs
from results import Goal, Result, progress, seconds, table
from rollcall.rehearse import forked_ranks, rehearsal
from rollcall.rehearse.network.estimate import estimate
from rollcall.rehearse.network.link import parse
from sections.rehearsed_traffic import OPS, rehearse, run_for_real

MOST = 0.20
LINK = "50mbit"  # slow: the cores that all ranks share then hardly matter


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    if os.geteuid() != 0:
        progress("virtual hosts need root: this section is left out")
        return Result([], [Goal("an op's time", f"± {MOST:.0%}", "needs root", None)])
    made = table(f"Four ops of each sort, 4 hosts × 2 ranks, links of {LINK}", "", "estimated", "measured", "")
    errors: dict[str, Any] = {}
    link = parse(1.0, LINK)
    assert link is not None
    with contextlib.closing(forked_ranks.start_server(rehearsal.build_library())) as server:
        for op in OPS:
            told_s = estimate(replace(rehearse(jobs, server, op), is_step=True), link).communication_s
            real = run_for_real(jobs, op, options.timeout_s, "--link", LINK)
            if real:
                real_s = median(each["seconds"] for each in real)
                errors[op] = {"estimated_s": told_s, "measured_s": real_s, "error": told_s / real_s - 1}
                made.add_row(op, seconds(told_s), seconds(real_s), f"{errors[op]['error']:+.0%}")
                progress(f"{op}: {told_s:.2f} s, measured {real_s:.2f} s")
    worst = max((each["error"] for each in errors.values()), key=abs, default=1.0)
    is_met = len(errors) == len(OPS) and abs(worst) <= MOST
    return Result([made], [Goal("time of ops on slow links", f"± {MOST:.0%}", f"{worst:+.0%}", is_met)], errors)
