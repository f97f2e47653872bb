"""explain_big.py RANKS OPS [FAULT …] makes the rings of a big run and has `rollcall explain --json` read them.

What it took and what it said goes into $ROLLCALL_BENCH/figures.json. This process stays small on purpose: Linux counts
the memory of whoever starts a process towards that process' own peak.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

MAKER = Path(__file__).parent.parent / "big_rings.py"
ROLLCALL = Path(sys.executable).with_name("rollcall")
LOOK_S = 0.1
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main(ranks: str, ops: str, faults: list[str]) -> None:
    folder = Path(os.environ["ROLLCALL_BENCH"])
    words = [sys.executable, str(MAKER), str(folder), ranks, ops, *(["--faults", *faults] if faults else [])]
    started_s = time.monotonic()
    run = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    made_s = time.monotonic() - started_s
    explain(run, folder, made_s=made_s)


def explain(run: str, folder: Path, **more: float) -> None:
    """What it says goes into told.json, and what it took, with more figures, into figures.json."""
    with open(folder / "told.json", "wb") as told:
        started_s = time.monotonic()
        child = subprocess.Popen([str(ROLLCALL), "explain", "--json", run], stdout=told)
        code, peak_bytes = watch(child.pid)
        seconds = time.monotonic() - started_s
    child.returncode = code
    if code:
        sys.exit(code)
    (folder / "figures.json").write_text(json.dumps({**more, "seconds": seconds, "peak_bytes": peak_bytes}))


def watch(pid: int) -> tuple[int, int]:
    """Its exit code, and its most memory: by the kernel's count, or with its children's, as seen now and then."""
    seen_bytes = 0
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), max(usage.ru_maxrss * 1024, seen_bytes)
        seen_bytes = max(seen_bytes, sum(map(rss_bytes, descendants_of(pid))))
        time.sleep(LOOK_S)


def descendants_of(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:  # it has just ended
                continue
    return found


def rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
