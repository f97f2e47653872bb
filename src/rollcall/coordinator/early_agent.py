"""Starts this machine's agent before anything else, because it takes a second to import torch.

This process never imports torch. While the agent does, it reads the command line, makes the plan, and imports what it
needs to follow the run.
"""

import os

from rollcall.linux import warm_servers
from rollcall.transport import local, warm

TYPE_CHECKING = False  # this file imports almost nothing, not even typing, before the agent has started
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# Options of `rollcall run` with which no agent of this process is needed: ranks run on other hosts, real or virtual.
_OTHER_HOSTS = {"--hosts", "--hostfile", "--virtual-hosts", "--slurm", "--kubernetes", "--dry-run"}
# Options without a value: the word behind them may be the script. A test compares them with those of RunOptions.
FLAGS = {
    "--allow-mixed", "--dry-run", "--exclude-bad", "--help", "--kubernetes", "--module", "--no-python", "--no-record",
    "--no_python", "--preflight", "--report", "--run-path", "--run_path", "--slurm", "--standalone", "--sync",
    "--virtual-local-rank", "--virtual_local_rank", "-h", "-m",
}  # fmt: skip
_FEW_CORES = 2
_WAIT_S = 0.5


def begin(argv: list[str], environ: "Mapping[str, str]") -> bool:
    """Start an agent that the next run will take, or take one of a warm server; none, if the run will most likely be on
    other hosts. Returns whether the agent is warm."""
    is_here = not is_on_other_hosts(argv, environ)
    is_warm = is_here and _take_warm(argv, environ)
    agent = local.start_early() if is_here and not is_warm else None
    from rollcall.linux import prctl, signals

    signals.note()
    prctl.become_subreaper()
    if agent is not None:
        _leave_cores_to(agent)
    return is_warm


def _take_warm(argv: list[str], environ: "Mapping[str, str]") -> bool:
    if environ.get(warm_servers.SWITCH) == "0" or (start_options := read_start_options(argv, environ)) is None:
        return False
    agent = warm.take(start_options)
    if agent is not None:
        local.use_early(agent)
    return agent is not None


def read_start_options(argv: list[str], environ: "Mapping[str, str]") -> "dict[str, Any] | None":
    """Finds in a command line what decides on the modules that an agent imports. None if that cannot be
    told here."""
    if argv[1:2] != ["run"] or any(name.startswith("PET_") for name in environ):
        return None
    start_options: dict[str, Any] = {"preload": [], "record": True, "kind": "script", "script": ""}
    for name, value in options_before_script(iter(argv[2:])):
        if name in FLAGS and value is not None:  # a mistake, or several short options in one word
            return None
        if name == "--preload":
            start_options["preload"].append(value)
        elif name == "--no-record":
            start_options["record"] = False
        elif name in ("-m", "--module"):
            start_options["kind"] = "module"
        elif name in ("--no-python", "--no_python"):
            start_options["kind"] = "command"
        elif not name.startswith("-"):
            return {**start_options, "script": name}
    return None


def is_on_other_hosts(argv: list[str], environ: "Mapping[str, str]") -> bool:
    """A guess, before the command line is read: by the options before the script, and by what schedulers set."""
    if any(name in environ for name in ("SLURM_JOB_ID", "PBS_NODEFILE")):
        return True
    return any(name in _OTHER_HOSTS for name, _ in options_before_script(iter(argv[2:])))


def options_before_script(arguments: "Iterator[str]") -> "Iterator[tuple[str, str | None]]":
    """Each option with its value, None if it has none, and the script as the last. Words behind the script, which are
    its own, are left in the iterator."""
    for word in arguments:
        if not word.startswith("-"):
            yield word, None
            return
        if word.startswith("--"):
            name, equals, value = word.partition("=")
        else:
            name, equals, value = word[:2], word[2:], word[2:]  # -n4
        yield name, value if equals else None if name in FLAGS else next(arguments, None)


def _leave_cores_to(agent: local.LocalAgent) -> None:
    """With two cores only, wait until the agent has loaded torch's libraries and needs one of them."""
    if len(os.sched_getaffinity(0)) <= _FEW_CORES:
        import select

        select.select([agent.reader], [], [], _WAIT_S)
