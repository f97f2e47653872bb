"""Every rank notes when its first all_reduce was done. Any launcher that sets torchrun's variables can start this."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
done_ns = time.time_ns()

assert total.item() == dist.get_world_size(), total
Path(os.environ["ROLLCALL_BENCH"], f"done-{dist.get_rank()}").write_text(str(done_ns))
dist.destroy_process_group()
