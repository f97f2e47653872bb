"""Starts this machine's agent before anything else, for it takes a second to import torch.

While the agent imports torch, this process, which never does, reads the command line, makes the plan, and imports what
it needs to follow the run.
"""

import os

from rollcall.transport import local

TYPE_CHECKING = False  # this file imports next to nothing, not even typing, before the agent is on its way
if TYPE_CHECKING:
    from collections.abc import Mapping

# Options of `rollcall run` with which no agent of this process is needed: ranks run on other hosts, real or virtual.
_OTHER_HOSTS = {"--hosts", "--hostfile", "--virtual-hosts", "--slurm", "--kubernetes", "--dry-run"}
# Options without a value: the word behind them may be the script. A test compares this with the options themselves.
_FLAGS = {
    "--allow-mixed", "--dry-run", "--help", "--kubernetes", "--module", "--no-python", "--no-record", "--report",
    "--run-path", "--slurm", "--standalone", "--sync", "--virtual-local-rank", "-h", "-m",
}  # fmt: skip
_FEW_CORES = 2
_WAIT_S = 0.5


def begin(argv: list[str], environ: "Mapping[str, str]") -> None:
    """Start an agent that the next run will take; or none, if the run will most likely be on other hosts."""
    agent = None if is_on_other_hosts(argv, environ) else local.start_early()
    from rollcall.linux import prctl, signals

    signals.note()
    prctl.become_subreaper()
    if agent is not None:
        _leave_cores_to(agent)


def is_on_other_hosts(argv: list[str], environ: "Mapping[str, str]") -> bool:
    """A guess, before the command line is read: by the options before the script, and by what schedulers set."""
    if any(name in environ for name in ("SLURM_JOB_ID", "PBS_NODEFILE")):
        return True
    words = iter(argv[2:])  # behind `rollcall run`
    for word in words:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name in _OTHER_HOSTS:
            return True
        if not name.startswith("-"):
            return False  # the script: what follows is its own
        has_value_inside = equals or (len(name) > 2 and name[1] != "-")  # -n4
        if name not in _FLAGS and not has_value_inside:
            next(words, None)
    return False


def _leave_cores_to(agent: local.LocalAgent) -> None:
    """With two cores only, wait until the agent has loaded torch's libraries and needs one of them."""
    if len(os.sched_getaffinity(0)) <= _FEW_CORES:
        import select

        select.select([agent.reader], [], [], _WAIT_S)
