"""Ranks as people write them: `0-3,7`, and back."""

from collections.abc import Iterable

from rollcall.errors import UsageError

_MOST_RANGES = 8


def list_of(numbers: Iterable[int]) -> str:
    """`0-3,7`."""
    return ",".join(_ranges(numbers))


def ranks_in_words(numbers: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-3,7`; of very many ranges the first few."""
    ranks = sorted(numbers)
    ranges = _ranges(ranks)
    more = f" and more, {len(ranks)} in all" if len(ranges) > _MOST_RANGES else ""
    return f"rank{'s' * (len(ranks) != 1)} {','.join(ranges[:_MOST_RANGES])}{more}"


def _ranges(numbers: Iterable[int]) -> list[str]:
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in spans]


def read_ranks(option: str, text: str) -> tuple[int, ...] | None:
    """The ranks that an option names by `0`, `0,2-3` or `all`. None: all."""
    if text == "all":
        return None
    ranks: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            ranks.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        raise UsageError(f"{option} {text} does not name ranks: use 0, or 0,2-3, or all") from None
    return tuple(sorted(ranks))
