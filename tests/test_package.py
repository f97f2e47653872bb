"""`import rollcall`: its public names, and the names that modules had before."""

import importlib
import subprocess
import sys

import pytest

import rollcall


@pytest.mark.parametrize("name", rollcall.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Without a DeprecationWarning: those are errors in tests."""
    assert getattr(rollcall, name) is not None


def test_a_renamed_module_imports_under_its_old_name() -> None:
    """It has the names of the new one, and a warning says where that is."""
    old = importlib.import_module("rollcall.group")
    with pytest.warns(DeprecationWarning, match="rollcall.group is now rollcall.initialization.process_group"):
        init = old.init
    assert init is rollcall.init


def test_an_experiment_still_runs_under_its_old_name() -> None:
    words = [sys.executable, "-m", "rollcall.lab.send", "--trials", "0"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "--trials 0 measures nothing" in ran.stderr


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rollcall.no_such_module")
