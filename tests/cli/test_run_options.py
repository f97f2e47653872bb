"""The options of `rollcall run`: one value, which torchrun's own parser and the early guess must fit."""

import dataclasses

import pytest
from torch.distributed.run import get_args_parser

from rollcall.cli.run.command import plan_of, run
from rollcall.cli.run.options import RunOptions, spellings
from rollcall.coordinator.early_agent import FLAGS, is_on_other_hosts
from rollcall.errors import UsageError

FIELDS = [field for field in dataclasses.fields(RunOptions) if field.name not in ("script", "args")]


def test_every_option_of_torchrun_is_known() -> None:
    """Those that cannot work are refused in a sentence; a new one of torch would be missing here."""
    ours = {spelling for field in FIELDS for spelling in spellings(field.name)} | {"-h", "--help"}
    theirs = {spelling for action in get_args_parser()._actions for spelling in action.option_strings}
    assert theirs - ours == set()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"numa_binding": "near"}, "--numa-binding near is not known: use node"),
        ({"event_log_handler": "console"}, "--event-log-handler console is not available here"),
        ({"logs_specs": "mine"}, "--logs-specs is not available here"),
        ({"duplicate_stdout_filters": "x"}, "are not available here: search the logs"),
        ({"signals_to_handle": "SIGNOPE"}, "there is no signal 'SIGNOPE'"),
        ({"start_method": "thread"}, "--start-method thread is not known"),
        ({"monitor_interval": 0.0}, "--monitor-interval 0 is not a time"),
        ({"local_addr": "192.0.2.1"}, "--local-addr 192.0.2.1 is not an address of this host"),
        ({"run_path": True, "module": True}, "--run-path runs a script"),
        ({"timeout": -1.0}, "--timeout -1 is not a time to run"),
        ({"grace": -1.0}, "--shutdown-timeout -1 is below zero"),
        ({"hosts": ""}, "--hosts"),
        ({"hosts": "a", "env": ["=x"]}, "--env =x names no variable"),
    ],
)
def test_an_option_that_cannot_work_is_refused_in_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        run(RunOptions(script=__file__, nproc_per_node="2", **options))  # type: ignore[arg-type]


def test_options_of_torchrun_that_are_taken_over() -> None:
    options = RunOptions(
        script=__file__, nproc_per_node="2", start_method="spawn", monitor_interval=0.5, local_addr="127.0.0.1"
    )
    plan = plan_of(options)
    assert (plan.start, plan.monitor_interval_s, plan.interface) == ("fresh", 0.5, "lo")


def test_arguments_are_the_options_that_were_set() -> None:
    """As they would be typed, so that a scheduler's job can pass them on."""
    options = RunOptions(script="t.py", max_restarts=2, no_record=True, env=["A=1", "B"], nproc_per_node="4")
    words = ["--no-record", "--max-restarts", "2", "--env", "A=1", "--env", "B"]
    assert options.arguments(without={"nproc_per_node"}) == words


def test_the_early_guess_knows_all_options_without_a_value() -> None:
    flags = {spelling for field in FIELDS if field.default is False for spelling in spellings(field.name)}
    assert flags | {"-h", "--help"} == FLAGS


@pytest.mark.parametrize(
    ("words", "is_elsewhere"),
    [
        ("-n 4 train.py", False),
        ("-n 4 train.py --hosts x", False),
        ("-n4 --max_restarts 2 -m trainer --virtual-hosts", False),
        ("--no-record train.py --slurm", False),
        ("--max-restarts=2 train.py --kubernetes", False),
        ("--hosts a,b train.py", True),
        ("-n 4 --virtual-hosts 2 train.py", True),
        ("--no-record --slurm train.py", True),
        ("--hosts=a,b train.py", True),
        ("", False),
    ],
)
def test_only_words_before_the_script_count_for_the_early_guess(words: str, is_elsewhere: bool) -> None:
    assert is_on_other_hosts(["rollcall", "run", *words.split()], {}) == is_elsewhere


def test_in_an_allocation_no_early_agent_is_started() -> None:
    assert is_on_other_hosts(["rollcall", "run", "train.py"], {"SLURM_JOB_ID": "7"})
