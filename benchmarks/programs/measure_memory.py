"""Measures what `rollcall rehearse` has predicted, on a machine with a GPU. It needs nothing but torch:

    python benchmarks/programs/measure_memory.py memory.json

Each configuration of memory_configurations.py runs in a process of its own, as one rank. Where its world has more
ranks, torch's fake backend takes the place of nccl. DDP, which that backend cannot serve, has an nccl group of one
rank: what a rank of DDP keeps does not depend on how many there are. Then it runs again on smaller cards: torch's
allocator is limited to the sizes for which the predictions (memory_predictions.json) say whether it fits. It takes
about four minutes.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PREDICTIONS = HERE.parent / "memory_predictions.json"
AT_ONCE = 4  # processes, each with a limited part of the card: memory is counted for each process alone
TIMEOUT_S = 120


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("output", type=Path, help="the file to write")
    options.add_argument("--one", metavar="NAME", help="this configuration alone, in this process")
    options.add_argument("--limit-bytes", type=int, default=0, help="of torch's allocator, for --one")
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.limit_bytes)))
    else:
        measure_all(given.output)


def measure_all(output: Path) -> None:
    predicted = json.loads(PREDICTIONS.read_text())["configurations"]
    check_configurations(predicted)
    jobs = [(name, 0) for name in predicted]
    jobs += [(name, card["limit_bytes"]) for name, found in predicted.items() for card in found["cards"]]
    began_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        measured = list(pool.map(lambda job: run_one(*job), jobs))
    found: dict[str, Any] = {name: {"cards": []} for name in predicted}
    for (name, limit_bytes), result in zip(jobs, measured, strict=True):
        if limit_bytes:
            found[name]["cards"].append({"limit_bytes": limit_bytes, **result})
        else:
            found[name].update(result)
    content = {"machine": machine(), "seconds": round(time.monotonic() - began_s, 1), "configurations": found}
    output.write_text(json.dumps(content, indent=2) + "\n")


def check_configurations(predicted: dict[str, Any]) -> None:
    sys.path.insert(0, str(HERE))
    from memory_configurations import CONFIGURATIONS, described

    stale = [name for name, found in predicted.items() if found["configuration"] != described(CONFIGURATIONS[name])]
    if stale:
        sys.exit(f"{PREDICTIONS.name} was made for other configurations of {', '.join(stale)}: predict them again")


def run_one(name: str, limit_bytes: int) -> dict[str, Any]:
    words = [sys.executable, __file__, "-", "--one", name, "--limit-bytes", str(limit_bytes)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIMEOUT_S} s"}
    lines = done.stdout.strip().splitlines()
    print(name, limit_bytes or "", lines[-1] if lines else done.stderr[-2000:], file=sys.stderr, flush=True)
    return json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr[-2000:]}


def machine() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "total_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def measure(name: str, limit_bytes: int) -> dict[str, Any]:
    """Run one configuration. `fits` is whether it came to its end."""
    import torch

    sys.path.insert(0, str(HERE))
    from memory_configurations import CONFIGURATIONS, train

    made = CONFIGURATIONS[name]
    torch.cuda.set_device(0)
    if made.wrapper != "none":
        join_group(1 if made.wrapper == "ddp" else made.world_size)
    if limit_bytes:
        torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.get_device_properties(0).total_memory)
    fits = True
    try:
        train(made)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        fits = False
    found = {"fits": fits, **figures()}
    gc.collect()
    return found


def figures() -> dict[str, Any]:
    import torch

    stats = torch.cuda.memory_stats()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "requested_bytes": stats["requested_bytes.all.peak"],
        "left_bytes": torch.cuda.memory_allocated(),
        "retries": stats["num_alloc_retries"],
        "segments": stats["segment.all.peak"],
        # With other processes on the card at the same time, this is theirs, too.
        "outside_bytes": total_bytes - free_bytes - torch.cuda.memory_reserved(),
    }


def join_group(world_size: int) -> None:
    import torch.distributed as dist

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE="1")
    if world_size > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    else:
        dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())


if __name__ == "__main__":
    main()
