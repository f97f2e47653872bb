"""The short way through the command line of `rollcall run` gives what typer gives, or leaves it to typer."""

import dataclasses
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rollcall.cli.run.fast_parse import read
from rollcall.cli.run.options import RunOptions, as_command

USUAL = [
    "train.py",
    "-n 4 train.py --epochs 3 -n 5 --help",
    "-n4 --show 0,2-3 --max-restarts 2 -m my.trainer",
    "--nproc_per_node=8 --hang-after 5 --on-hang stop --grace 0.5 --timeout 60 train.py -- x",
    "--preload a --preload b --env NCCL_* --env A=1 --no-record --report train.py",
    "--hosts a:3,b --hostfile f.txt --min-hosts 1 --sync --link 1gbit train.py",
    "--virtual-hosts 2 --ring-mb 16 --log-dir logs -r 3 -t 0:1 train.py",
    "--nnodes 2 --node-rank 1 --master-addr h --master_port 1234 --rdzv-conf timeout=3 train.py",
    "--slurm --nodes 2 --sbatch-arg=--partition=gpu train.py",
    "--no-python ls -l",
    "--timeout -1 train.py",
    "--no_python --show --sync x.py",
]
UNUSUAL = ["", "-n 4", "--help", "-h", "--nope x.py", "-n", "--grace x train.py", "--sync=yes x.py", "-- train.py"]
UNUSUAL += ["--ring-mb 0 x.py", "-mn4 x", "-n 2 --sync", "--slurm= x.py"]


def by_typer(words: list[str]) -> RunOptions:
    found: list[RunOptions] = []
    app = typer.Typer()
    app.command(context_settings={"allow_interspersed_args": False})(as_command(found.append))
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    return found[0]


def plain(options: RunOptions) -> dict[str, Any]:
    return {name: value or None for name, value in dataclasses.asdict(options).items()}


@pytest.mark.parametrize("typed", USUAL)
def test_options_are_those_that_typer_reads(typed: str) -> None:
    options = read(typed.split(), {})
    assert options is not None
    assert plain(options) == plain(by_typer(typed.split()))


def test_words_behind_the_program_are_its_own() -> None:
    """Even if rollcall has an option of that name."""
    options = read(["-n", "2", "pack", "--show", "7", "-n", "9", "--", "--help"], {})
    assert options is not None
    assert (options.script, options.nproc_per_node) == ("pack", "2")
    assert options.args == ["--show", "7", "-n", "9", "--", "--help"]


@pytest.mark.parametrize("typed", UNUSUAL)
def test_what_is_unusual_is_left_to_typer(typed: str) -> None:
    assert read(typed.split(), {}) is None


def test_options_in_variables_are_left_to_typer() -> None:
    assert read(["train.py"], {"PET_NPROC_PER_NODE": "2"}) is None
    assert read(["train.py"], {"ROLLCALL_RING_MB": "2"}) is None
