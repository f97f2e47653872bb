"""`rollcall bench` beside the same loop in C++, on one GPU: PYTHONPATH=src python benchmarks/programs/bench_on_gpu.py

Needs torch with nccl, a GPU, nvcc, and what `rollcall bench` needs. all_gather of one nccl rank, out of place,
queued and as a CUDA graph: on one rank nccl copies memory for it, and does nothing for most other ops. What differs
between the two is the loop, not the network. Prints microseconds of a call, and the ratio.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SIZES = [8, 1 << 20, 64 << 20, 1 << 30]
SOURCE = Path(__file__).with_name("nccl_loop.cu")
TIMEOUT_S = 120


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        bare = run_bare(Path(folder))
        ours = run_ours(Path(folder), graph=False) | run_ours(Path(folder), graph=True)
    print(f"{'all_gather':<24}{'C++':>12}{'rollcall bench':>18}{'ratio':>10}")
    for size in SIZES:
        for way, bare_us in bare[str(size)].items():
            our_us = ours[size, way]
            print(f"{f'{size:,} B, {way}':<24}{bare_us:>9,.2f} µs{our_us:>15,.2f} µs{our_us / bare_us:>10.3f}")
    return 0


def run_bare(folder: Path) -> dict[str, dict[str, float]]:
    spec = importlib.util.find_spec("nvidia.nccl")
    roots = list(spec.submodule_search_locations or []) if spec else []
    if not roots:
        sys.exit("nccl's headers are not here: torch's wheels for CUDA bring them")
    program, nccl = folder / "nccl_loop", Path(roots[0])
    library = next((nccl / "lib").glob("libnccl.so*"))
    words = ["nvcc", "-O2", str(SOURCE), "-o", str(program), "-I", str(nccl / "include")]
    words += ["-L", str(library.parent), f"-l:{library.name}", "-Xlinker", f"-rpath={library.parent}"]
    subprocess.run(words, check=True, timeout=TIMEOUT_S)
    sizes = ",".join(map(str, SIZES))
    done = subprocess.run([program, sizes], check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def run_ours(folder: Path, graph: bool) -> dict[tuple[int, str], float]:
    figures = folder / "bench.json"
    words = [sys.executable, "-m", "rollcall", "bench", "all_gather", "-n", "1", "--no-mpi", "--json", str(figures)]
    words += ["--sizes", ",".join(map(str, SIZES)), "--place", "out", "--backend", "nccl"]
    subprocess.run([*words, *(["--graph"] if graph else [])], check=True, timeout=TIMEOUT_S, cwd=folder)
    rows: list[dict[str, Any]] = json.loads(figures.read_text())["rows"]
    return {(row["size_bytes"], "graph" if graph else "queued"): row["p50_s"] * 1e6 for row in rows}


if __name__ == "__main__":
    sys.exit(main())
