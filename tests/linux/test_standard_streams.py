"""Standard streams that are closed, that cannot show every character, or that cannot be written."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.linux import standard_streams

PREPARE = "import os, sys; from rollcall.linux import standard_streams; standard_streams.prepare(); "


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_null(closed: str, tmp_path: Path) -> None:
    """No file that is opened later gets their numbers."""
    path = tmp_path / "number"
    opens = f"number = os.open('.', 0); open({str(path)!r}, 'w').write(str(number))"
    code = f"{PREPARE} print(1); print(2, file=sys.stderr); {opens}"
    subprocess.run(["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code], check=True, timeout=180)
    assert int(path.read_text()) > 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:surrogateescape"])
def test_what_an_encoding_lacks_is_a_question_mark(encoding: str) -> None:
    """And no error."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{PREPARE} print('0 │ 3')"],
        env={"PYTHONIOENCODING": encoding, "PYTHONPATH": ":".join(sys.path), "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=180,
    )
    assert ran.stdout == b"0 ? 3\n"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), True),
        (OSError(errno.ENOSPC, "No space left on device", "snapshot.pt"), False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), False),
    ],
)
def test_errors_of_output_are_told_from_those_of_files(error: OSError, is_lost: bool) -> None:
    assert standard_streams.is_lost_output(error) == is_lost
