"""Numbers, bytes, seconds and speeds as people read and write them."""

import math
import re

_DECIMAL = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_BINARY = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:I?B)?", re.IGNORECASE)
_SECONDS = (("s", 1.0), ("ms", 1e-3))


def plural(count: int, noun: str) -> str:
    """`1 rank`, `1,024 ranks`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def in_bytes(size_bytes: float) -> str:
    """`4.00 kB`: 1 kB is 1000 bytes."""
    for unit, size in _DECIMAL:
        if size_bytes >= size:
            return f"{_three_digits(size_bytes / size)} {unit}"
    return f"{size_bytes:.0f} B"


def in_binary_bytes(size_bytes: float) -> str:
    """`64 KiB`: for sizes that are powers of two, 1 KiB is 1024 bytes."""
    for unit, size in _BINARY:
        if size_bytes >= size:
            return f"{size_bytes / size:.4g} {unit}"
    return f"{size_bytes:.0f} B"


def read_bytes(text: str) -> int:
    """`8`, `8B`, `64M`, `64MB`, `1GiB`: K, M and G are powers of 1024, as in nccl-tests. 0 if it is not a size."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()] if found else 0


def in_seconds(seconds: float) -> str:
    """`12.3 µs`, `1.23 ms`, `45.6 s`, `2 min 05 s`, `24 h 00 min`."""
    if math.isnan(seconds):
        return "—"
    if abs(seconds) >= 3600:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours:,} h {rest:02} min"
    if abs(seconds) >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes:,} min {rest:02} s"
    for unit, size in _SECONDS:
        if abs(seconds) >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds * 1e6)} µs"


def in_bits(bytes_per_s: float) -> str:
    """`23.4 Gbit/s`: network speeds are given in bits."""
    unit, size = ("Gbit/s", 1e9) if bytes_per_s * 8 >= 1e9 else ("Mbit/s", 1e6)
    return f"{_three_digits(bytes_per_s * 8 / size)} {unit}"


def in_flop(flop_per_s: float) -> str:
    """`880 TFLOP/s`."""
    unit, size = ("TFLOP/s", 1e12) if flop_per_s >= 1e12 else ("GFLOP/s", 1e9)
    return f"{_three_digits(flop_per_s / size)} {unit}"


def _three_digits(value: float) -> str:
    decimals = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{decimals}f}" if value else "0"
