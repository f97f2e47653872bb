"""Run with `make compat`, or: .venv-compat/bin/python benchmarks/frameworks.py --only lightning torch

Whether programs of others do under `rollcall run` what they do under torchrun: the scripts that accelerate tests
itself with, trainings with Lightning, Fabric, transformers, ignite and DeepSpeed, a DDP training beside other tools
that look at it, and torch's own tests of torch.distributed with and without recording. Compared are exit codes and what
each rank prints; and explain must have no finding but advice where a program passed.

A program runs twice under torchrun: lines that differ between the two, such as times, are compared without numbers.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from results import console, progress, table
from rollcall.explain import verdict

PROGRAMS = Path(__file__).parent / "programs" / "frameworks"
RANKS = 2
LIMIT_S = 600
NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


@dataclass(frozen=True)
class Case:
    name: str
    module: str  # it is left out where this is not installed
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ran:
    code: int | None  # None: it took too long
    printed: list[list[str]]  # by rank
    findings: list[str]
    errors: str


def cases() -> Iterator[Case]:
    for name in ("test_ops", "test_script", "test_sync", "test_distributed_data_loop", "test_ddp_comm_hook"):
        yield Case(f"accelerate {name}", "accelerate", ("-m", f"accelerate.test_utils.scripts.{name}"))
    for name, module in (
        ("lightning_ddp", "lightning"),
        ("fabric_ddp", "lightning"),
        ("transformers_trainer", "transformers"),
        ("ignite_ddp", "ignite"),
        ("deepspeed_zero", "deepspeed"),
    ):
        yield Case(name.replace("_", " "), module, (str(PROGRAMS / f"{name}.py"),))
    beside = str(PROGRAMS / "ddp_beside.py")
    detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    flight_recorder = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    everything = {**detail, **flight_recorder}
    yield Case("DDP beside DETAIL", "torch", (beside,), detail)
    yield Case("all_reduces beside DETAIL", "torch", (beside, "plain"), detail)
    yield Case("DDP beside Flight Recorder", "torch", (beside,), flight_recorder)
    yield Case("DDP beside the profiler", "torch", (beside, "profile"))
    yield Case("DDP, compiled", "torch", (beside, "compile"))
    yield Case("DDP beside all of them", "torch", (beside, "profile", "compile"), everything)
    yield Case("all_reduces beside all of them", "torch", (beside, "plain", "profile", "compile"), everything)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="programs whose name has one of these")
    only = options.parse_args().only
    shown = table(
        "the same program under torchrun and under rollcall run", "program", "torchrun", "rollcall", "differs"
    )
    problems = 0
    for case in cases():
        if any(word in case.name for word in only):
            problems += add_row(case, shown)
    console.print(shown)
    if any(word in "torch's own tests" for word in only):
        problems += compare_torch_suite()
    return 1 if problems else 0


def add_row(case: Case, shown: Table) -> int:
    if importlib.util.find_spec(case.module) is None:
        shown.add_row(case.name, "–", "–", f"{case.module} is not installed")
        return 0
    progress(case.name)
    first, second, ours = (run(launcher, case) for launcher in ("torchrun", "torchrun", "rollcall"))
    differs = differences(first, second, ours)
    shown.add_row(case.name, str(first.code), str(ours.code), "; ".join(differs) or "nothing")
    if differs:
        progress(ours.errors[-2000:])
    return len(differs)


def run(launcher: str, case: Case) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name(launcher)), *(["run"] if launcher == "rollcall" else [])]
        command += [
            "--standalone",
            f"--nproc-per-node={RANKS}",
            f"--log-dir={folder}/logs",
            "--redirects=3",
            *case.words,
        ]
        env = {**os.environ, **case.env, "OMP_NUM_THREADS": "1", "ROLLCALL_DIR": f"{folder}/rollcall"}
        try:
            ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S)
            code, errors = code_of_rank(ended), ended.stderr
        except subprocess.TimeoutExpired as late:
            code, errors = None, str(late)
        logs = sorted(Path(folder, "logs").glob("**/stdout.log"), key=lambda path: int(path.parent.name))
        printed = [path.read_text(errors="replace").splitlines() for path in logs]
        rings = Path(folder, "rollcall", "runs", "latest")
        return Ran(code, printed, findings_of(rings) if rings.exists() else [], errors)


def code_of_rank(ended: "subprocess.CompletedProcess[str]") -> int:
    """torchrun's own exit code is 1 whatever happened to a rank; its last words say more."""
    said = re.search(r"exitcode\s*: (-?\d+)", ended.stderr)
    code = int(said[1]) if said else ended.returncode
    return code if code >= 0 else 128 - code


def findings_of(folder: Path) -> list[str]:
    found = [each for each in verdict.explain(folder.resolve()).findings if not each.is_advice]
    return [f"{each.kind} at {', '.join(map(str, each.sites))}" for each in found]


def differences(first: Ran, second: Ran, ours: Ran) -> list[str]:
    """In words; empty if ours is as theirs, or well where theirs crashes, as torch does with DDP, gloo and DETAIL."""
    if ours.code == 0 and first.code != 0:
        return [f"explain says {', '.join(ours.findings)}"] if ours.findings else []
    found = []
    if ours.code != first.code:
        found.append(f"exit code {ours.code}")
    if len(ours.printed) != len(first.printed):
        found.append(f"output of {len(ours.printed)} ranks")
    for rank, lines in enumerate(zip(first.printed, second.printed, ours.printed, strict=False)):
        once, again, here = map(Counter, lines)
        steady = once & again
        if without_numbers(once) != without_numbers(here) and without_numbers(once) == without_numbers(again):
            found.append(f"rank {rank} prints other lines")
        elif steady - here:
            found.append(f"rank {rank} does not print {next(iter(steady - here))!r}")
    if ours.code == 0 and ours.findings:
        found.append(f"explain says {', '.join(ours.findings)}")
    return found


def without_numbers(lines: Counter[str]) -> Counter[str]:
    return Counter(NUMBER.sub("#", line) for line in lines.elements())


def compare_torch_suite() -> int:
    """torch's own tests: as many pass with recording, and none that passed has a finding."""
    progress("torch's own tests, with and without recording")
    with tempfile.TemporaryDirectory() as folder:
        plain, recorded = run_suite(None), run_suite(folder)
        passed = [name for name, codes in plain.items() if set(codes) == {0}]
        differ = [name for name in plain if plain[name] != recorded.get(name)]
        blamed = {name: found for name in passed if (found := findings_in(Path(folder, name)))}
    shown = table("torch's own tests of torch.distributed, eight gloo ranks", "", "tests")
    shown.add_row("run", str(len(plain)))
    shown.add_row("passed without recording", str(len(passed)))
    shown.add_row("ended otherwise with recording", str(len(differ)))
    shown.add_row("passed, and explain has a finding", str(len(blamed)))
    console.print(shown)
    for name in differ:
        console.print(f"{name}: {plain[name]} without, {recorded.get(name)} with recording")
    for name, found in blamed.items():
        console.print(f"{name}: {'; '.join(found)}")
    return len(differ) + len(blamed)


def findings_in(folder: Path) -> list[str]:
    return findings_of(folder) if (folder / "rings").exists() else ["no recording"]


def run_suite(folder: str | None) -> dict[str, list[int | None]]:
    env = {name: value for name, value in os.environ.items() if name != "ROLLCALL_RECORD"}
    if folder:
        env["ROLLCALL_RECORD"] = folder
    command = [sys.executable, str(PROGRAMS / "torch_suite.py")]
    ended = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=7200)
    return dict(map(json.loads, ended.stdout.splitlines()))


if __name__ == "__main__":
    sys.exit(main())
