"""A training loop without the training. In attempt 0 it goes on until a rank is lost; later ones come to an end.

Under torchrun, hosts may count restarts differently: one that starts again because another has left does not count it.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

MOST_S = 60
STEPS = 20
STEP_S = 0.01

folder = Path(os.environ["ROLLCALL_BENCH"])
has_begun = any(folder.glob("attempt-0/busy-*"))
attempts = torch.tensor([max(int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(has_begun))])


def work() -> None:
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(1))
        time.sleep(STEP_S)


dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(attempts, op=dist.ReduceOp.MAX)
attempt = attempts.item()
folder /= f"attempt-{attempt}"
folder.mkdir(exist_ok=True)
(folder / f"first-{rank}").write_text(str(time.time_ns()))

work()
if attempt == 0:
    (folder / f"busy-{rank}").write_text(str(os.getpid()))
    deadline_s = time.monotonic() + MOST_S
    while time.monotonic() < deadline_s:
        work()
    sys.exit(f"no rank was lost within {MOST_S} s")

(folder / f"finished-{rank}").write_text("yes")
dist.destroy_process_group()
