"""explain_dumps.py RANKS OPS makes Flight Recorder dumps of a big job and has `rollcall explain --json` read them.

What it took and what it said goes into $ROLLCALL_BENCH, as with explain_big.py.
"""

import os
import subprocess
import sys
from pathlib import Path

from explain_big import explain

MAKER = Path(__file__).parent.parent / "big_dumps.py"


def main(ranks: str, ops: str) -> None:
    folder = Path(os.environ["ROLLCALL_BENCH"])
    words = [sys.executable, str(MAKER), str(folder), ranks, ops]
    dumps = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    explain(dumps, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
