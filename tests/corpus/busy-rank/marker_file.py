"""Rank 0 polls for a marker file under a name that nobody writes, while rank 1 waits in the barrier.

ranks: 2
kind: busy-rank
look at: 0
ends: hangs
"""

import tempfile
import time
from pathlib import Path

import torch.distributed as dist


class Export:
    def __init__(self, folder):
        self.folder = Path(folder)

    def write(self):
        (self.folder / "model.bin").write_bytes(b"weights")
        (self.folder / "model.done").touch()

    def wait_until_written(self):
        while not (self.folder / "model.bin.done").exists():  # GUILTY
            time.sleep(0.2)  # GUILTY


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            export = Export(folder)
            export.write()
            export.wait_until_written()
    dist.barrier()
    print("export is complete")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
