"""Metrics on disk."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rollcall.train.reporting.metrics_log import FILE_NAME, MetricsLog
from tests.train.conftest import FILLER, fill


def test_a_full_disk_does_not_stop_the_log(small_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each file is reported once; later lines are written when there is space again, and no line is incomplete."""
    log = MetricsLog(small_disk, 0, 0)
    for step in range(400):
        if step == 10:
            fill(small_disk)
        if step == 399:
            (small_disk / FILLER).unlink()
        log.write({"event": "step", "epoch": 0, "step": step, "loss": 0.5})
    err = capfd.readouterr().err
    assert err.count(f"{FILE_NAME} cannot be written (No space left on device): training continues without it") == 1
    assert err.count("TensorBoard's file cannot be written (No space left on device)") == 1
    assert err.count("\n") == 2
    steps = [json.loads(line)["step"] for line in (small_disk / FILE_NAME).read_text().splitlines()]
    assert steps == [*range(len(steps) - 1), 399]
    shown = [event.step for event in EventAccumulator(str(small_disk / "tensorboard")).Reload().Scalars("loss")]
    assert shown == [*range(len(shown) - 1), 399]


def test_a_resumed_training_removes_the_lines_after_its_snapshot(tmp_path: Path) -> None:
    """Those of later steps, that of an epoch which is not complete, and an incomplete line."""
    lines = [
        {"event": "step", "epoch": 0, "step": 4},
        {"event": "epoch", "epoch": 0, "step": 6},
        {"event": "epoch", "epoch": 1, "step": 12},
        {"event": "step", "epoch": 2, "step": 16},
    ]
    path = tmp_path / FILE_NAME
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "st')
    MetricsLog(tmp_path, step=12, epoch=1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines[:2]
