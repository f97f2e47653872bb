"""The options of `rollcall train`."""

import subprocess
import sys
from pathlib import Path

import pytest

import rollcall as rc
from rollcall.cli.train import train
from rollcall.train.recipes.config import TrainConfig

# As if scikit-learn were not installed: find_spec gives None for such a module.
WITHOUT_SCIKIT_LEARN = """\
import sys
sys.modules["sklearn"] = None
sys.argv = ["rollcall", "train", "-n", "2"]
from rollcall.__main__ import main
main()
"""

BAD_ARGS = {
    "--batch-size 0": "--batch-size 0 is not possible: use a number of at least 1",
    "--lr nan": "--lr nan is not possible: use a number of at least 0",
    "--clip-norm 0": "--clip-norm 0.0 is not possible: use a number above 0",
    "--model gpt": "--model gpt is not known: use mlp, cnn",
    "--save-every sometimes": "save_every is 'sometimes'",
}


@pytest.mark.parametrize("args", BAD_ARGS)
def test_values_that_cannot_work_are_refused(args: str) -> None:
    """The error names the option."""
    with pytest.raises(rc.UsageError, match=BAD_ARGS[args]):
        TrainConfig.from_args(args.split())


def test_the_command_refuses_them_before_a_rank_starts() -> None:
    """The launcher checks what the ranks would check."""
    with pytest.raises(rc.UsageError, match=BAD_ARGS["--batch-size 0"]):
        train(nproc_per_node="2", batch_size=0)


def test_ranks_get_the_same_options_as_the_launcher() -> None:
    """Options with their default value are not handed on."""
    config = TrainConfig(model="cnn", lr=0.1, compile=True, clip_norm=0.5, save_every="5steps")
    args = ["--model", "cnn", "--lr", "0.1", "--clip-norm", "0.5", "--compile", "--save-every", "5steps"]
    assert config.to_args() == args
    assert TrainConfig.from_args(args) == config


def test_without_scikit_learn_the_command_names_the_extra_to_install(tmp_path: Path) -> None:
    """One line and exit code 2; no rank starts."""
    command = [sys.executable, "-c", WITHOUT_SCIKIT_LEARN]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("rollcall: the training data (handwritten digits) comes with scikit-learn")
    assert ran.stderr.endswith("which is not installed: pip install 'torch-rollcall[demo]'\n")
    assert not any(tmp_path.iterdir())
