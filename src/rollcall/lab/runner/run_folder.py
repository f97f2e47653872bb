"""The run folder of an experiment: what `rollcall runs`, `rollcall report` and `rollcall explain` read.

Without cases it holds the recording of one extra trial. With cases, each has a folder of its own below arms/, and the
run shows the recording of one of them.
"""

import os
from pathlib import Path
from typing import Any

from rollcall.coordinator.run_folder import RunFolder, command_line
from rollcall.lab.experiment import Case, Experiment, LabSettings, Results
from rollcall.lab.runner.on_rank import ATTEMPT
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import THIS_HOST, Plan, Program
from rollcall.runs import read_facts


def create(experiment: Experiment, settings: LabSettings) -> RunFolder:
    name = f"lab-{experiment.name}"
    plan = Plan(Program("module", name), hosts=(Host(THIS_HOST, settings.world_size),), run_id=name, cwd=os.getcwd())
    # In `rollcall lab all`, each run notes the command that repeats this experiment alone.
    command = [experiment.name if word == "all" else word for word in command_line()]
    folder = RunFolder.create(plan, command)
    folder.note_attempt(ATTEMPT, world_size=settings.world_size)
    return folder


def of_case(folder: Path, case: Case) -> Path:
    return folder / "arms" / "".join(c if c.isalnum() else "-" for c in case.name)


def complete(folder: RunFolder, experiment: Experiment, results: Results) -> None:
    """Add what the recording does not say: exit codes, outcome, hosts."""
    if not experiment.cases:
        folder.note_attempt(ATTEMPT, exit_codes={str(rank): 0 for rank in range(len(results))})
        # On virtual hosts the ranks belong to a `rollcall run`, whose folder is below this one.
        folder.save(**_hosts(read_facts(folder.path / "runs" / "latest")))
        return
    reported = Path(results[experiment.reported_case or experiment.cases[-1].name]["folder"])
    for part in ("rings", "logs"):
        if (reported / part).is_dir():
            (folder.path / part).symlink_to((reported / part).relative_to(folder.path.resolve()))
    facts = read_facts(reported)
    # The attempt has the outcome of the case. The run itself has its own: a case that hangs is no failure of the lab.
    folder.note_attempt(ATTEMPT, **facts["attempts"][ATTEMPT], outcome=facts["outcome"])
    folder.save(**_hosts(facts))


def _hosts(facts: dict[str, Any]) -> dict[str, Any]:
    """Virtual hosts share this machine's clock, whatever was measured over their link."""
    one_clock = {"clock_offset_ns": 0, "clock_error_ns": 0, "clock_readings": [[0, 0, 0]]}
    hosts = {name: {**host, **one_clock} for name, host in facts.get("hosts", {}).items()}
    return {"hosts": hosts} if hosts else {}
