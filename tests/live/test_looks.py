"""A real job that runs, looked at while it does. `make looks` looks ten thousand times, at jobs of all sorts."""

import subprocess
import sys
from pathlib import Path

LOOKS = Path(__file__).parents[2] / "benchmarks" / "looks.py"


def test_a_healthy_job_is_not_blamed_while_it_runs() -> None:
    """DDP on four ranks, with a checkpoint of rank 0's now and then: whatever explain sees, it is in flight."""
    words = [sys.executable, str(LOOKS), "--looks", "60", "--ranks", "4", "--kinds", "ddp"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "ddp: 60 looks" in found.stdout
