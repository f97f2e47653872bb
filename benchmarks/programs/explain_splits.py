"""explain_splits.py RANKS CALLS WRONG makes the rings of all_to_alls with random splits, which `rollcall explain` reads
as JSON. In the last call, what rank WRONG expects does not match.

What it took and what it said goes into $ROLLCALL_BENCH, as with explain_big.py.
"""

import os
import subprocess
import sys
from pathlib import Path

from explain_big import explain

MAKER = Path(__file__).parent.parent / "big_splits.py"


def main(ranks: str, calls: str, wrong: str) -> None:
    folder = Path(os.environ["ROLLCALL_BENCH"])
    words = [sys.executable, str(MAKER), str(folder / "run"), ranks, calls, "--wrong", wrong]
    run = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    explain(run, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
