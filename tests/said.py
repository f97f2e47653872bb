"""Reads the merged console: which ranks printed which line. Equal lines may be folded into one, or not."""

import subprocess
from collections import defaultdict

from rollcall.protocol.rank_ranges import read_ranks
from tests.torch_output import without_torchs


def said(out: str) -> dict[str, list[int]]:
    """Each line that ranks printed, with these ranks."""
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    for line in without_torchs(out).splitlines():
        label, found, text = line.partition(" │ ")
        if found:
            ranks[text.rstrip()].update(read_ranks("label", label.strip()) or ())
    return {text: sorted(who) for text, who in ranks.items()}


def read_until(process: "subprocess.Popen[str]", text: str, ranks: list[int]) -> None:
    """Read until these ranks have printed this line."""
    assert process.stdout is not None
    out = ""
    while said(out).get(text) != ranks:
        line = process.stdout.readline()
        assert line, f"{ranks} did not print {text!r}, but: {out}"
        out += line
