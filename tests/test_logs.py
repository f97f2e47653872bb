import logging
import re
from pathlib import Path

import pytest

from rollcall import configure_logger
from rollcall.errors import UsageError
from rollcall.logs import console_logger

LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[INFO\]: "


def test_a_file_per_rank(tmp_path: Path) -> None:
    """Each rank writes time, level and message into its own file, in a folder that is made."""
    configure_logger(3, tmp_path / "new" / "logs").info("hello")
    text = (tmp_path / "new" / "logs" / "process_3.log").read_text()
    assert re.fullmatch(LINE + "hello\n", text)


def test_twice_is_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call replaces the first: no line comes twice."""
    configure_logger(0, tmp_path)
    configure_logger(0, tmp_path).info("hello")
    assert (tmp_path / "process_0.log").read_text().count("hello") == 1
    assert capsys.readouterr().err.count("hello") == 1


def test_only_the_first_rank_speaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the console rank 0 speaks alone, unless all are asked to."""
    configure_logger(0, tmp_path).info("from 0")
    configure_logger(1, tmp_path).info("from 1")
    configure_logger(2, tmp_path, all_ranks=True).info("from 2")
    err = capsys.readouterr().err
    assert "from 0" in err
    assert "from 1" not in err
    assert "from 2" in err


def test_a_long_line_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A console line is never folded, and brackets in it are no markup."""
    configure_logger(0, None).info("x" * 500 + " [bold] [/]")
    assert re.fullmatch(LINE + "x{500} " + re.escape("[bold] [/]") + "\n", capsys.readouterr().err)


def test_the_root_logger_does_not_repeat(caplog: pytest.LogCaptureFixture) -> None:
    """What a rank logs does not come again from the root logger."""
    with caplog.at_level(logging.INFO):
        configure_logger(0, None).info("hello")
    assert not caplog.records


def test_an_unwritable_folder(tmp_path: Path) -> None:
    """A folder that cannot be written is an error that names it."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"log folder .*file/logs cannot be written"):
        configure_logger(0, tmp_path / "file" / "logs")


def test_a_world_names_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """A world's logger names the rank in each line where nobody else does."""
    console_logger(2, name_rank=True).info("hello")
    console_logger(2, name_rank=False).info("again")
    assert re.fullmatch(f"{LINE}rank 2: hello\n{LINE}again\n", capsys.readouterr().err)
