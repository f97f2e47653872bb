"""FSDP2 by hand, with Lightning Fabric, with Accelerate and with rollcall.Trainer: a step, memory, save, resume, lines.

On two gloo ranks, or on one nccl rank where there is a GPU. Accelerate is there only with a GPU: without one it takes
DDP, whatever its plugin says.
"""

import argparse
import ast
import json
import shutil
import subprocess
from pathlib import Path
from statistics import median

from contenders import HERE, PEERS, PROGRAMS
from jobs import Jobs
from results import Result, how_it_failed, progress, seconds, table

_PROGRAMS = {
    "FSDP2 by hand, DCP": "fsdp_raw.py",
    "Lightning Fabric": "fsdp_fabric.py",
    "Accelerate": "fsdp_accelerate.py",
    "rollcall.Trainer": "fsdp_rollcall.py",
}
_NEEDS = {"Lightning Fabric": "lightning", "Accelerate": "accelerate"}
_LOOK = """
import importlib.util, json, torch
found = {name: importlib.util.find_spec(name) is not None for name in ("lightning", "accelerate")}
print(json.dumps({**found, "gpu": torch.cuda.is_available()}))
"""
_TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]
_PYTHON = str(PEERS / "bin" / "python" if PEERS.exists() else HERE / "python3")
Figures = dict[str, list[float]]


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    there = json.loads(subprocess.run([_PYTHON, "-c", _LOOK], capture_output=True, check=True, text=True).stdout)
    ranks = 1 if there["gpu"] else 2
    missing = {name for name, package in _NEEDS.items() if not there[package]}
    if not there["gpu"]:
        missing.add("Accelerate")
    programs = {name: program for name, program in _PROGRAMS.items() if name not in missing}
    found: dict[str, Figures] = {name: {} for name in programs}
    for _ in range(options.rounds):
        for name, program in programs.items():
            for what, value in _run(jobs, program, ranks, options.timeout_s).items():
                found[name].setdefault(what, []).append(value)
    place = "one GPU, 134 M" if there["gpu"] else "2 ranks, 8 M"
    made = table(f"FSDP2 on {place} parameters in 8 units (medians)", "", *programs)
    for what, label in (("steps", "a step"), ("save", "save"), ("resume", "resume")):
        made.add_row(label, *(_show(each.get(what)) for each in found.values()))
    peaks = (each.get("peak_mib") for each in found.values())
    made.add_row("peak memory of a rank", *(f"{median(peak):,.0f} MiB" if peak else "–" for peak in peaks))
    lines = (_count_lines(PROGRAMS / "training" / program) for program in programs.values())
    made.add_row("lines of code", *map(str, lines))
    return Result([made], [], {name: dict(figures) for name, figures in found.items()})


def _run(jobs: Jobs, program: str, ranks: int, timeout_s: float) -> dict[str, float]:
    target = jobs.new_folder() / "saved"
    words = [_PYTHON, *_TORCHRUN, f"--nproc-per-node={ranks}", str(PROGRAMS / "training" / program), str(target)]
    with jobs.start(words, OMP_NUM_THREADS="1") as job:
        code = job.wait(timeout_s)
        shutil.rmtree(target, ignore_errors=True)  # gigabytes, on a GPU
        path = job.folder / "fsdp.json"
        if code != 0 or not path.exists():
            progress(f"{program} {how_it_failed(code)}:\n{job.last_words()}")
            return {}
        return {name: float(value) for name, value in json.loads(path.read_text()).items()}


def _show(values: list[float] | None) -> str:
    return seconds(median(values)) if values else "–"


def _count_lines(path: Path) -> int:
    """Lines with code: neither empty, nor comments, nor the docstring."""
    tree = ast.parse(path.read_text())
    nodes = (node for statement in tree.body[1:] for node in ast.walk(statement) if hasattr(node, "lineno"))
    return len({node.lineno for node in nodes})
