"""Ranks with DataLoader workers and a grandchild that left the session: what could be left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
loader = iter(DataLoader(list(range(10_000)), num_workers=1, batch_size=1))
next(loader)
subprocess.Popen(["setsid", "sleep", "300"])
if os.fork() == 0:  # a daemon: double fork, own session
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
dist.barrier()
Path(sys.argv[1], f"ready.{dist.get_rank()}").touch()
time.sleep(300)
