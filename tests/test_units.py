"""Bytes and seconds as people read them."""

import pytest

from rollcall.units import in_binary_bytes, in_bits, in_bytes, in_flop, in_seconds, read_bytes


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (4000, "4.00 kB"), (64e6, "64.0 MB"), (1 << 30, "1.07 GB"), (2.5e15, "2,500 TB")],
)
def test_bytes_count_in_thousands(size: float, words: str) -> None:
    """1 GB is 1000 MB, as on the label of a network card."""
    assert in_bytes(size) == words


def test_speeds_of_networks_are_in_bits() -> None:
    assert [in_bits(speed) for speed in (12.5e6, 2.93e9)] == ["100 Mbit/s", "23.4 Gbit/s"]


def test_speeds_of_devices_are_in_flop() -> None:
    assert [in_flop(speed) for speed in (8.7e9, 8.8e14)] == ["8.70 GFLOP/s", "880 TFLOP/s"]


def test_powers_of_two_have_units_of_their_own() -> None:
    """1 KiB is 1024 bytes."""
    assert [in_binary_bytes(size) for size in (8, 65536, 1 << 30)] == ["8 B", "64 KiB", "1 GiB"]


def test_sizes_are_read_as_people_write_them() -> None:
    """K, M and G are powers of 1024; what is not a size is 0."""
    sizes = {"8": 8, "512K": 512 << 10, "64MB": 64 << 20, " 1 GiB ": 1 << 30, "much": 0, "-1": 0}
    assert {text: read_bytes(text) for text in sizes} == sizes


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 µs"),
        (12.34e-6, "12.3 µs"),
        (0.00123, "1.23 ms"),
        (0.5, "500 ms"),
        (-0.5, "-500 ms"),
        (45.6, "45.6 s"),
        (125, "2 min 05 s"),
        (5400, "1 h 30 min"),
        (float("nan"), "—"),
    ],
)
def test_seconds_have_three_digits(seconds: float, words: str) -> None:
    """In the unit that fits."""
    assert in_seconds(seconds) == words
