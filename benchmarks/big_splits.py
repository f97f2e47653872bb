"""Writes the recording of a simulated MoE job: big_splits.py FOLDER RANKS CALLS [--wrong RANK]

Every op is an all_to_all whose splits are random and match, so that no two signatures are alike: each call has to be
compared. With --wrong, this rank expects one row more than rank 0 sends, in the last call, and all ranks hang there.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from big_rings import RECORD
from rollcall.record import ring_format
from rollcall.record.ring import Ring

START_NS = 5_000_000_000_000_000
STEP_NS = 1_000_000
FILE, LINE = "moe.py", 12
_MOST_ROWS = 10  # that a rank sends to another: one digit, so that 5,000 signatures fit into a ring
_NAME_BYTES = 8 << 20


def write(folder: Path, ranks: int, calls: int, wrong: int = -1) -> Path:
    """The folder of the run."""
    place = folder / "rings" / "attempt-0"
    place.mkdir(parents=True)
    outcome = {"outcome": "ok"} if wrong < 0 else {"outcome": "stopped"}
    (folder / "run.json").write_text(json.dumps({**outcome, "attempts": [{"world_size": ranks, "hung": wrong >= 0}]}))
    for rank in range(ranks):
        _write_ring(place / f"rank-{rank}.ring", ranks, calls, rank, wrong)
    return folder


def splits_of(ranks: int, call: int) -> NDArray[np.int64]:
    """Rows that each rank sends (lines) to each other (columns)."""
    return np.random.default_rng(call).integers(0, _MOST_ROWS, (ranks, ranks))


def _write_ring(path: Path, ranks: int, calls: int, rank: int, wrong: int) -> None:
    size_bytes = ring_format.NAMES_AT + _NAME_BYTES + (calls + 16) * ring_format.RECORD.size
    ring = Ring(
        path, rank=rank, world_size=ranks, attempt=0, host="node-0", size_bytes=size_bytes, names_bytes=_NAME_BYTES
    )
    group = ring.name("group", "0", {"name": "0", "ranks": [[0, ranks - 1]]})
    site = ring.name("site", LINE, [[FILE, LINE, "route"]])
    records = _records(ranks, calls, rank)
    records["group"], records["site"] = group, site
    for call in range(calls):
        is_wrong = wrong >= 0 and call == calls - 1
        told = _signature(splits_of(ranks, call), rank, is_wrong and rank == wrong)
        records["signature"][call] = ring.name("signature", call, told)
        records["size_bytes"][call] = 4 * told["shapes"][0][0]
        if is_wrong:
            records["completed_ns"][call] = 0
    with open(path, "r+b") as file:
        file.seek(ring_format.COUNT_AT)
        file.write(ring_format.NUMBER.pack(calls))
        file.seek(ring_format.NAMES_AT + _NAME_BYTES)
        file.write(records.tobytes())


def _records(ranks: int, calls: int, rank: int) -> NDArray[Any]:
    records = np.zeros(calls, RECORD)
    numbers = np.arange(1, calls + 1)
    late_ns = np.random.default_rng(rank).integers(0, STEP_NS // 10, calls)
    records["number"], records["seq"] = numbers, numbers
    records["op"], records["peer"], records["flags"] = ring_format.OP["all_to_all"], -1, ring_format.WAITED
    records["entered_ns"] = START_NS + numbers * STEP_NS + late_ns
    records["issued_ns"] = records["waited_ns"] = records["entered_ns"] + 1000
    records["completed_ns"] = START_NS + numbers * STEP_NS + STEP_NS // 2
    return records


def _signature(rows: NDArray[np.int64], rank: int, is_wrong: bool) -> dict[str, Any]:
    sent, received = rows[rank].tolist(), rows[:, rank].tolist()
    received[0] += is_wrong
    splits = ["single", received, sent, [sum(received), 1]]
    return {"shapes": [[sum(sent), 1]], "dtypes": ["float32"], "device": "cpu", "splits": splits}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("ranks", type=int)
    options.add_argument("calls", type=int)
    options.add_argument("--wrong", type=int, default=-1, metavar="RANK", help="whose splits do not match at the end")
    found = options.parse_args()
    print(write(found.folder.resolve(), found.ranks, found.calls, found.wrong))


if __name__ == "__main__":
    main()
