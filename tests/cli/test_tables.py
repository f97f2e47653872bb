"""The tables that commands print."""

import os

import pytest

from rollcall.cli.tables import print_findings, print_runs
from rollcall.coordinator.doctor import Findings

HEALTH = {
    "alpha": {
        "flop_per_s": {"cuda:0": 8.8e14},
        "copied_bytes_per_s": {"cuda:0": 4.16e12},
        "all_reduce_bytes_per_s": 0.0,
        "gpus": [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "temperature_c": 38,
                "slowdown_c": 89,
                "sm_mhz": 345,
                "most_sm_mhz": 1980,
                "power_limit_w": 700.0,
                "uncorrected_errors": 0,
                "throttled": ["too hot"],
                "processes": 0,
            }
        ],
    },
    "beta": {"flop_per_s": {"cpu": 6.1e10}, "copied_bytes_per_s": {"cpu": 9e9}, "all_reduce_bytes_per_s": 5e8},
}


def test_a_deep_check_shows_what_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of hosts that are well: one row for each device, and one for each GPU that NVML knows."""
    print_findings(Findings([], [], [], HEALTH), [], None, as_json=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["alpha", "cuda:0", "880", "TFLOP/s", "4.16", "TB/s", "—"] in rows
    assert ["beta", "cpu", "61.0", "GFLOP/s", "9.00", "GB/s", "500", "MB/s"] in rows
    gpu = "alpha 0 NVIDIA H200 38 of 89 °C 345 of 1980 MHz 700 W 0 too hot 0"
    assert gpu.split() in rows


def test_a_gpu_that_tells_little_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """A driver may leave values out; a GPU that is lost answers nothing."""
    print_findings(
        Findings([], [], [], {"gamma": {"gpus": [{"index": 3, "lost": "fell off the bus"}]}}), [], None, False
    )
    assert "gamma  3    —      —            —      —            —           fell off the bus" in capsys.readouterr().out


def test_a_run_whose_launcher_is_on_another_host_still_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """A process of that number need not exist here: the folder may be on a shared disk."""
    mine = {"started": "2026-11-19T10:00:00", "command": ["run"], "attempts": [], "outcome": "running"}
    here = {"host": os.uname().nodename, "launcher_pid": 2**22 + 1}
    print_runs([{**mine, **here}, {**mine, **here, "host": "elsewhere"}])
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["outcome", "killed", "running"]
