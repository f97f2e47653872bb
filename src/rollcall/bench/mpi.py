"""The same ops with Open MPI on this machine, if it is installed, to compare with.

A small C program (mpi_ops.c) is compiled for it. Open MPI uses shared memory here, gloo uses sockets.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rollcall.bench.results import BenchResults, Mpi, MpiRow

_SOURCE = Path(__file__).with_name("mpi_ops.c")
_COMPILE_S = 60.0
_INSTALL = "install openmpi-bin and libopenmpi-dev to compare with its times"
_MOST_BYTES = 1 << 30  # MPI counts in ints


def measure(results: BenchResults) -> Mpi:
    """Each op at each size that was measured, in about a third of the time."""
    for command in ("mpirun", "mpicc"):
        if shutil.which(command) is None:
            return Mpi(missing=f"no {command} here: {_INSTALL}")
    wanted = _wanted(results)
    count = sum(map(len, wanted.values()))
    each_s = min(0.5, results.seconds / 3 / max(count, 1))
    with tempfile.TemporaryDirectory(prefix="rollcall-mpi-") as folder:
        program = Path(folder, "mpi_ops")
        compiled = subprocess.run(
            ["mpicc", "-O2", "-o", program, _SOURCE], capture_output=True, text=True, timeout=_COMPILE_S, check=False
        )
        if compiled.returncode:
            return Mpi(missing=f"mpicc could not compile mpi_ops.c ({_last_line(compiled.stderr)}): {_INSTALL}")
        arguments = [word for op, sizes in wanted.items() for word in (op, ",".join(map(str, sizes)))]
        return _run([str(program), f"{each_s:g}", *arguments], results.ranks, results.settings.max_time_s)


def _wanted(results: BenchResults) -> dict[str, list[int]]:
    wanted: dict[str, dict[int, None]] = {}
    for row in results.rows:
        if row.size_bytes <= _MOST_BYTES:
            wanted.setdefault(row.op, {})[row.size_bytes] = None
    return {op: list(sizes) for op, sizes in wanted.items()}


def _run(arguments: list[str], ranks: int, most_s: float) -> Mpi:
    mpirun = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    # mpirun as root needs two variables; those of a launcher that started this process would mislead it.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "SLURM_"))}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    try:
        done = subprocess.run(
            [*mpirun, *arguments], capture_output=True, text=True, timeout=most_s + 30, env=env, check=False
        )
    except subprocess.TimeoutExpired as late:
        text = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
        return Mpi(version=_version(), rows=_rows(text), missing="" if text else "mpirun took too long")
    if done.returncode:
        return Mpi(missing=f"mpirun failed: {_last_line(done.stderr)}")
    return Mpi(version=_version(), rows=_rows(done.stdout))


def _rows(text: str) -> tuple[MpiRow, ...]:
    rows = []
    for line in text.splitlines():
        op, size, mean = line.split()
        size_bytes, mean_s = int(size), float(mean)
        rows.append(MpiRow(op=op, size_bytes=size_bytes, mean_s=mean_s, algorithm_gb_s=size_bytes / mean_s / 1e9))
    return tuple(rows)


def _version() -> str:
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0].removeprefix("mpirun ").replace("(", "").replace(")", "") if said else "MPI"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip(" -")]
    return lines[-1].strip() if lines else "it printed nothing"
