"""explain_dumps.py RANKS OPS makes Flight Recorder dumps of a big job and has `rollcall explain --json` read them.

What it took and what it said goes into $ROLLCALL_BENCH, as with explain_big.py.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from explain_big import ROLLCALL, watch

MAKER = Path(__file__).parent.parent / "big_dumps.py"


def main(ranks: str, ops: str) -> None:
    folder = Path(os.environ["ROLLCALL_BENCH"])
    words = [sys.executable, str(MAKER), str(folder), ranks, ops]
    dumps = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with open(folder / "told.json", "wb") as told:
        started_s = time.monotonic()
        child = subprocess.Popen([str(ROLLCALL), "explain", "--json", dumps], stdout=told)
        code, peak_bytes = watch(child.pid)
        seconds = time.monotonic() - started_s
    child.returncode = code
    if code:
        sys.exit(code)
    (folder / "figures.json").write_text(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
