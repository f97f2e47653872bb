"""What a Python that forms no process group pays for ROLLCALL_RECORD, in its start; and whether it writes anything."""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs import Jobs
from results import Goal, Result, progress, table

MOST_MS = 1.0
FOLDER = "recording"
# Reads the one line that each Python reads when it starts, again and again.
UNSET = """\
import site, sysconfig, time
folder, name = sysconfig.get_path("purelib"), "rollcall_autostart.pth"
began = time.perf_counter()
for _ in range(1000):
    site.addpackage(folder, name, set())
print(time.perf_counter() - began)
"""


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    """In pairs, with the variable and without: a difference of parts of a millisecond is seen in the median only."""
    with TemporaryDirectory() as folder:
        _start_ms(folder, {})  # fills the caches
        pairs = [
            (_start_ms(folder, {"ROLLCALL_RECORD": FOLDER}), _start_ms(folder, {})) for _ in range(options.start_pairs)
        ]
        has_written = Path(folder, FOLDER).exists()
    set_ms, unset_ms = statistics.median(mine - bare for mine, bare in pairs), _unset_ms()
    bare_ms = statistics.median(bare for _, bare in pairs)
    progress(f"a start takes {bare_ms:.1f} ms, and {set_ms:+.2f} ms with the variable")
    made = table("A Python that forms no group", "start", "variable set", "not set", "writes")
    made.add_row(f"{bare_ms:.1f} ms", f"{set_ms:+.2f} ms", f"{unset_ms:+.3f} ms", "yes" if has_written else "nothing")
    met = max(set_ms, unset_ms) < MOST_MS and not has_written
    goal = Goal("ROLLCALL_RECORD: a start of Python without a group", f"< {MOST_MS:g} ms", f"{set_ms:+.2f} ms", met)
    return Result([made], [goal], {"pairs_ms": pairs, "unset_ms": unset_ms})


def _start_ms(folder: str, env: dict[str, str]) -> float:
    began_ns = time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", "pass"], cwd=folder, env=env, check=True)
    return (time.perf_counter_ns() - began_ns) / 1e6


def _unset_ms() -> float:
    """Of one reading: seconds for a thousand are milliseconds for one."""
    ran = subprocess.run([sys.executable, "-c", UNSET], env={}, check=True, capture_output=True, text=True)
    return float(ran.stdout)
