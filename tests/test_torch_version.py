"""Which torch is installed, and which are refused."""

import pytest
import torch

from rollcall.errors import UsageError
from rollcall.torch_version import refuse_older, torch_version


def test_the_version_is_torchs_own() -> None:
    """Read from its files."""
    assert torch_version() == str(torch.__version__)


@pytest.mark.parametrize("version", ["2.8.0+cu128", "1.13.1"])
def test_an_older_torch_is_refused_with_what_to_do(version: str) -> None:
    """The sentence has the version that was found, the oldest that works, and why."""
    with pytest.raises(UsageError, match=r"2\.9 or newer, the oldest .*: pip install 'torch>=2\.9'"):
        refuse_older(version)


@pytest.mark.parametrize("version", ["2.9.0", "2.10.0a0+git1", "2.15.0+cu132", "3.0.0", "unknown"])
def test_others_are_not(version: str) -> None:
    """Nor those that nobody has tried yet."""
    refuse_older(version)
