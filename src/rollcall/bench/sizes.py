"""Sizes in bytes, as people write them."""

from rollcall.errors import UsageError
from rollcall.units import in_binary_bytes, read_bytes

SMALLEST, LARGEST = 8, 1 << 30


def parse(text: str) -> int:
    """A size of one byte or more."""
    size_bytes = read_bytes(text)
    if not size_bytes:
        raise UsageError(f"--sizes: {text!r} is not a size; use a number of bytes from 1, such as 8, 512K, 64M or 1G")
    return size_bytes


def parse_list(text: str, factor: int = 4) -> tuple[int, ...]:
    """`8,64K,1M`, or `8-1G` for steps from the first to the last, each `factor` times the one before."""
    if factor < 2:
        raise UsageError(f"--step {factor} is not possible: use a number from 2")
    first, dash, last = text.partition("-")
    if dash:
        return steps(parse(first), parse(last), factor)
    return tuple(sorted({parse(part) for part in text.split(",")}))


def steps(first: int, last: int, factor: int = 4) -> tuple[int, ...]:
    """From the first size to the last, each `factor` times the one before; the last is always included."""
    if last < first:
        span = f"{in_binary_bytes(first)} to {in_binary_bytes(last)}"
        raise UsageError(f"sizes from {span} are reversed: put the smaller first")
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= factor
    return (*sizes, last)
