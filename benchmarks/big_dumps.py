"""Writes Flight Recorder dumps of a large simulated job that hangs: big_dumps.py FOLDER RANKS OPS

As nccl writes them when an op times out: a pickle per rank with its newest ops, their stacks, shapes and states. One
rank never made the last call; the others wait there, with a few more ops queued behind it.
"""

import os
import pickle
import random
import sys
from pathlib import Path
from typing import Any

START_NS = 1_794_000_000_000_000_000
STEP_NS = 20_000_000
GUILTY = 7
VARIANTS = 16  # ranks with the same times
QUEUED = 5
FIRST = 100_000  # ops that the recorder has overwritten
_FRAMES = [
    {"name": f"layer_{number}", "filename": f"/home/user/train/model_{number % 12}.py", "line": number}
    for number in range(120)
]
_OPS = (("all_reduce", [4096, 1024]), ("_all_gather_base", [1024, 4096]), ("_reduce_scatter_base", [4096, 4096]))


def write(folder: Path, ranks: int, ops: int) -> Path:
    place = folder / "dumps"
    place.mkdir()
    variants = [_pickled(ranks, _entries(ops, seed)) for seed in range(VARIANTS)]
    for rank in range(ranks):
        (place / f"nccl_trace_rank_{rank}").write_bytes(variants[rank % VARIANTS])
    guilty = _entries(ops, GUILTY)[: -QUEUED - 1]
    (place / f"nccl_trace_rank_{GUILTY % ranks}").write_bytes(_pickled(ranks, guilty))
    at_ns = START_NS + ops * STEP_NS + 600_000_000_000
    for path in place.iterdir():
        os.utime(path, ns=(at_ns, at_ns))
    return place


def _pickled(ranks: int, entries: list[dict[str, Any]]) -> bytes:
    world = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    content = {"version": "2.10", "pg_config": {"0": world}, "pg_status": {}, "entries": entries}
    return pickle.dumps(content, protocol=2)


def _entries(ops: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [_entry(number, ops - QUEUED - 1, chance) for number in range(ops)]


def _entry(number: int, stuck: int, chance: random.Random) -> dict[str, Any]:
    name, shape = _OPS[number % len(_OPS)]
    created_ns = START_NS + number * STEP_NS + chance.randrange(1_000_000)
    is_done = number < stuck
    first = number * 7 % 100
    return {
        "frames": _FRAMES[first : first + 12],
        "record_id": FIRST + number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "140254703381376",
        "collective_seq_id": FIRST + number + 1,
        "p2p_seq_id": 0,
        "op_id": FIRST + number + 1,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": created_ns,
        "input_sizes": [shape],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [shape],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if is_done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created_ns + STEP_NS // 2 if is_done else None,
        "retired": is_done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
