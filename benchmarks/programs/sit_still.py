"""Every rank does one all_reduce, reports that it is ready, and sleeps while its memory is read."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

MOST_S = 300

folder = Path(os.environ["ROLLCALL_BENCH"])
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
(folder / f"ready-{dist.get_rank()}").write_text(str(os.getpid()))

deadline_s = time.monotonic() + MOST_S
while not (folder / "go").exists():
    if time.monotonic() > deadline_s:
        sys.exit(f"nobody read the memory within {MOST_S} s")
    time.sleep(0.2)
dist.destroy_process_group()
