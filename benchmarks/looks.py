"""Run with `make looks`, or: .venv/bin/python benchmarks/looks.py --looks 10000 --ranks 8

Looks at healthy jobs while they run (DDP, FSDP2, a pipeline, async handles, uneven inputs that are joined), again and
again, as `rollcall explain` does. Any finding is wrong, except a straggler. Ends with 1 if there was one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rollcall.errors import UsageError
from rollcall.explain.verdict import explain, in_words

PROGRAM = Path(__file__).parent / "programs" / "healthy.py"
KINDS = ("ddp", "fsdp2", "pipeline", "async", "joined")
_JOB_S = 20.0  # a job that is looked at; then the next one begins


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--looks", type=int, default=1000, help="at all jobs together")
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options.add_argument("--limit", type=float, default=3600, help="begin no more jobs of a kind after so many seconds")
    given = options.parse_args()
    found = {kind: look_at(kind, given.ranks, given.looks // len(given.kinds), given.limit) for kind in given.kinds}
    for kind, counts in found.items():
        print(f"{kind}: {counts.total()} looks: {dict(counts)}")
    return any(set(counts) - {"nothing", "straggler"} for counts in found.values())


def look_at(kind: str, ranks: int, looks: int, limit_s: float) -> Counter[str]:
    """What was found, and how often."""
    counts: Counter[str] = Counter()
    deadline_s = time.monotonic() + limit_s
    while counts.total() < looks and time.monotonic() < deadline_s:
        with tempfile.TemporaryDirectory() as folder:
            job = start(kind, ranks, Path(folder))
            try:
                counts += watch(job, Path(folder) / "runs" / "latest", looks - counts.total())
            finally:
                job.terminate()
                job.wait()
    return counts


def start(kind: str, ranks: int, folder: Path) -> subprocess.Popen[bytes]:
    words = ["run", "-n", str(ranks), str(PROGRAM), kind, str(_JOB_S)]
    env = {**os.environ, "ROLLCALL_DIR": str(folder)}
    return subprocess.Popen([sys.executable, "-m", "rollcall", *words], env=env, stdout=subprocess.DEVNULL)


def watch(job: subprocess.Popen[bytes], folder: Path, most: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    while job.poll() is None and counts.total() < most:
        try:
            explanation = explain(folder.resolve())
        except UsageError:  # no rank has begun
            time.sleep(0.05)
            continue
        if explanation.outcome != "running":
            break
        counts[explanation.findings[0].kind if explanation.findings else "nothing"] += 1
        for finding in explanation.findings:
            if finding.kind != "straggler":
                print(in_words(finding), file=sys.stderr)
    return counts


if __name__ == "__main__":
    sys.exit(main())
