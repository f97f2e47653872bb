"""Reading the merged console: who said what. Equal lines are folded when they come close together, so both are read."""

import subprocess
from collections import defaultdict

from rollcall.protocol.rank_ranges import ranks_of


def said(out: str) -> dict[str, list[int]]:
    """Each line that ranks printed, with those who did."""
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    for line in out.splitlines():
        label, found, text = line.partition(" │ ")
        if found:
            ranks[text.rstrip()].update(ranks_of(label.strip()) or ())
    return {text: sorted(who) for text, who in ranks.items()}


def listen(process: "subprocess.Popen[str]", text: str, ranks: list[int]) -> None:
    """Read on until these ranks have said this."""
    assert process.stdout is not None
    out = ""
    while said(out).get(text) != ranks:
        line = process.stdout.readline()
        assert line, f"{ranks} did not say {text!r}, but: {out}"
        out += line
