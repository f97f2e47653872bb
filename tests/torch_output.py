"""What torch itself prints."""

import re

# Gloo of torch 2.9 prints this on stdout, in every rank, for every group, with no way to turn it off.
_LINES = re.compile(r"^.*\[Gloo\] Rank \d+ is connected to .*\n", re.MULTILINE)


def without_torchs(text: str) -> str:
    """What the program has printed."""
    return _LINES.sub("", text)
