"""How far an experiment is."""

import os
from pathlib import Path

import pytest

from rollcall.lab import progress
from rollcall.lab.progress import track


def test_loops_within_loops_share_the_whole() -> None:
    """Of two times four steps each is an eighth, and it never goes back."""
    shares = [progress.share() for _ in track(range(2)) for _ in track(range(4))]
    assert shares == [eighths / 8 for eighths in range(8)]
    assert progress.share() == 0  # nothing is left over


def test_a_loop_without_steps_is_done() -> None:
    """A case that this rank takes no part in."""
    for _ in track(range(1)):
        assert list(track([])) == []


def test_only_rank_0_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would write the same; afterwards neither file nor variable is left."""
    shares: list[float] = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with progress.follow(tmp_path / rank, shares.append):
            for _ in track(range(2)):
                written = (tmp_path / rank).read_bytes()
            assert (written != bytes(8)) == (rank == "0")
    assert not list(tmp_path.iterdir())
    assert not [name for name in os.environ if name.startswith("ROLLCALL_LAB")]
