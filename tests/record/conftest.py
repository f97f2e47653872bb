"""What tests of the recorder share: each of them runs for both languages."""

from pathlib import Path

import pytest

from rollcall.record.cpp import library
from tests.rollcall_command import Runner

is_built = pytest.mark.skipif(library is None, reason="needs `python -m rollcall.native`, which compiles it")


@pytest.fixture(params=[pytest.param("cpp", marks=is_built), "python"])
def language(request: pytest.FixtureRequest) -> str:
    """Of the recorder."""
    return str(request.param)


@pytest.fixture
def runner(tmp_path: Path, language: str) -> Runner:
    """`rollcall` whose ranks are recorded in this language."""
    runner = Runner(tmp_path)
    runner.env["ROLLCALL_NATIVE"] = str(int(language == "cpp"))
    return runner
