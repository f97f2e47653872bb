import logging
import re
from pathlib import Path

import pytest

from rollcall import configure_logger
from rollcall.errors import UsageError
from rollcall.logs import console_logger

LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[INFO\]: "


def test_a_file_per_rank(tmp_path: Path) -> None:
    """Each rank writes time, level and message into its own file; the folder is created."""
    configure_logger(3, tmp_path / "new" / "logs").info("hello")
    text = (tmp_path / "new" / "logs" / "process_3.log").read_text()
    assert re.fullmatch(LINE + "hello\n", text)


def test_a_second_call_replaces_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call replaces the first: no line is printed twice."""
    configure_logger(0, tmp_path)
    configure_logger(0, tmp_path).info("hello")
    assert (tmp_path / "process_0.log").read_text().count("hello") == 1
    assert capsys.readouterr().err.count("hello") == 1


def test_only_rank_0_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only rank 0 prints to the console, unless all ranks are asked to."""
    configure_logger(0, tmp_path).info("from 0")
    configure_logger(1, tmp_path).info("from 1")
    configure_logger(2, tmp_path, all_ranks=True).info("from 2")
    err = capsys.readouterr().err
    assert "from 0" in err
    assert "from 1" not in err
    assert "from 2" in err


def test_a_long_line_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A console line is never wrapped, and brackets in it are no markup."""
    configure_logger(0, None).info("x" * 500 + " [bold] [/]")
    assert re.fullmatch(LINE + "x{500} " + re.escape("[bold] [/]") + "\n", capsys.readouterr().err)


def test_the_root_logger_does_not_repeat(caplog: pytest.LogCaptureFixture) -> None:
    """The root logger does not print a rank's lines again."""
    with caplog.at_level(logging.INFO):
        configure_logger(0, None).info("hello")
    assert not caplog.records


def test_an_unwritable_folder(tmp_path: Path) -> None:
    """A folder that cannot be written is an error that names it."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"log folder .*file/logs cannot be written"):
        configure_logger(0, tmp_path / "file" / "logs")


def test_a_world_names_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """A world's logger names the rank in each line, unless the console does."""
    console_logger(2, name_rank=True).info("hello")
    console_logger(2, name_rank=False).info("again")
    assert re.fullmatch(f"{LINE}rank 2: hello\n{LINE}again\n", capsys.readouterr().err)
