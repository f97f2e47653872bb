"""The lines of the program around a site."""

import linecache
from dataclasses import dataclass

from rollcall.explain.loading.table import Site

_AROUND = 3
_MOST_TEXT = 240


@dataclass(frozen=True)
class Excerpt:
    title: str
    lines: tuple[tuple[int, str, bool], ...]  # number, text, whether it is the line of the site


def excerpt(site: Site) -> Excerpt:
    """A few lines before and after; none if the file is not on this machine."""
    numbers = range(max(1, site.line - _AROUND), site.line + _AROUND + 1)
    found = [(number, linecache.getline(site.file, number)) for number in numbers]
    while found and not found[-1][1].strip():
        found.pop()
    lines = tuple((number, text.rstrip("\n")[:_MOST_TEXT], number == site.line) for number, text in found)
    return Excerpt(f"{site} in {site.function}", lines)
