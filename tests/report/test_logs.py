"""What is shown of the lines that ranks printed."""

import pytest

from rollcall.report import logs


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain", "plain"),
        (b"\x1b[31mred\x1b[0m and \x1b]0;title\x07 done", "red and  done"),
        (b"10%\r50%\r100%\r", "100%"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\x9b31m\x00\x07bell", "\ufffd31mbell"),
    ],
)
def test_lines_are_cleaned(raw: bytes, shown: str) -> None:
    """Of a line, only what a person can read is kept."""
    assert logs.clean(raw) == shown


def test_long_lines_are_shortened() -> None:
    """A line of a megabyte says how long it was."""
    shown = logs.clean(b"x" * (1 << 20))
    assert len(shown) < 500
    assert shown.endswith("(1,048,576 bytes)")
