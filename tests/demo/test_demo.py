"""`rollcall demo`, from the first step to the last."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall import demo
from rollcall.errors import UsageError


def test_the_demo_runs_its_steps(tmp_path: Path) -> None:
    """Ranks print who they are, a barrier orders, training gives equal weights, deadlocks are named, two hosts talk,
    and a rehearsal finds a bug."""
    pytest.importorskip("sklearn", reason="the demo's training needs scikit-learn: pip install 'torch-rollcall[demo]'")
    ran = subprocess.run(
        [sys.executable, "-m", "rollcall", "demo"],
        cwd=tmp_path,
        env={**os.environ, "ROLLCALL_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(f"rank {rank} of 4 is here" in ran.stdout for rank in range(4))
    assert '"process_id":' in ran.stdout
    assert "with a barrier in 0 and 0 of 50" in ran.stdout
    assert "explain called 3 of them p2p-deadlock" in ran.stdout
    assert "weights equal on all 4 ranks: True" in ran.stdout
    assert len(re.findall(r"rank \d on \S+, master at \S+: 42\b", ran.stdout)) == 2
    assert "ddp-uneven-inputs" in ran.stdout


def test_without_its_packages_it_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step, not in the middle of the demo."""
    monkeypatch.setattr(demo, "_NEEDED", {"json": "json", "no_such_module": "scikit-learn"})
    with pytest.raises(UsageError, match=r"the demo needs scikit-learn: pip install 'torch-rollcall\[demo\]'"):
        demo.show()
