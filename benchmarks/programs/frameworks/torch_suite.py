"""torch's own tests of torch.distributed, on eight gloo ranks each: forked from this process, which has imported torch.

Prints one line of JSON for each test: its name, and how its ranks ended. With ROLLCALL_RECORD=DIR each test is recorded
into a folder of its own below DIR. Arguments: names of tests, if not all are wanted.
"""

import json
import os
import signal
import sys
import tempfile
import time
from multiprocessing import Pipe
from typing import Any

os.environ.update(BACKEND="gloo", WORLD_SIZE="8", TEMP_DIR=tempfile.mkdtemp())

from torch.testing._internal.distributed import distributed_test

RANKS = 8  # some of the tests are skipped with fewer
LIMIT_S = 60.0
# They wait for a timeout of half a minute, crash on purpose, or print megabytes.
LEFT_OUT = ("test_monitored_barrier_allreduce_hang", "test_monitored_barrier_allreduce_hang_wait_all_ranks")


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    pass


def run(name: str) -> list[Any]:
    """How each rank ended: an exit code, or None if it took too long."""
    distributed_test.initialize_temp_directories()
    distributed_test.Barrier.init()
    with tempfile.NamedTemporaryFile(delete=False) as file:
        pids = [start(name, rank, file.name) for rank in range(RANKS)]
    ended = wait(dict.fromkeys(pids))
    distributed_test.cleanup_temp_dir()
    return [ended[pid] for pid in pids]


def start(name: str, rank: int, file: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        if folder := os.environ.get("ROLLCALL_RECORD"):
            os.environ["ROLLCALL_RECORD"] = os.path.join(folder, name)
        _ours, theirs = Pipe()  # ours stays open: a test that fails sends its traceback
        Suite._run(rank, name, file, theirs)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(code)


def wait(ended: dict[int, int | None]) -> dict[int, int | None]:
    """Those that take too long are ended, and have no exit code."""
    limit = time.monotonic() + LIMIT_S
    left = set(ended)
    while left and time.monotonic() < limit:
        for pid in list(left):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                left.remove(pid)
                ended[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return ended


def main() -> None:
    names = sys.argv[1:] or sorted(name for name in dir(Suite) if name.startswith("test_") and name not in LEFT_OUT)
    for name in names:
        print(json.dumps([name, run(name)]), flush=True)


if __name__ == "__main__":
    main()
