"""rollcall lab rehearsal

What would 1,024 ranks do? A training for GPUs is rehearsed on this machine: as 4 ranks, as 64 and as 1,024, of which
some are run. The same rehearsal of 4 ranks is compared with real ranks, op by op.

Its 1,088 batches can be shared evenly by 4 and by 64 ranks. With 1,024, the first 64 ranks have two and the others one,
so the first ones wait for ever. No small world shows that.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rollcall import World
from rollcall.errors import UsageError
from rollcall.lab.experiment import Case, Experiment, Results, Verdict, always, table
from rollcall.lab.plots import BLUE, ORANGE, Figure
from rollcall.lab.progress import track
from rollcall.units import in_binary_bytes, in_seconds

BATCHES = 1088
# The size of the world, the ranks that are run, and more arguments of the command.
WORLDS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "4 ranks": (4, "0-3", ("--steps", "3", "--check")),
    "64 ranks": (64, "0,63", ("--steps", "0")),
    "1,024 ranks": (1024, "0,63-64,1023", ("--steps", "0")),
}
CASES = tuple(Case(name, f"ranks {which} of a world of {name}", limit_s=300) for name, (_, which, _) in WORLDS.items())


# `rehearse` writes this function to a file, as a script: so its imports are inside.
def train(batches: int) -> None:
    """A script for GPUs, which need not be here."""
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(torch.nn.Linear(1024, 1024).to(device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(dist.get_rank(), batches, dist.get_world_size()):
        model(torch.randn(16, 1024, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


def rehearse(ranks: int, which: str, more: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Runs the command, as a user would."""
    script = folder / "train.py"
    script.write_text(f"{inspect.getsource(train)}\n\ntrain({BATCHES})\n")
    command = [sys.executable, "-m", "rollcall", "rehearse", "--json", "-n", str(ranks), "--ranks", which, *more]
    env = {**os.environ, "ROLLCALL_DIR": str(folder)}
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, cwd=folder, env=env, check=False)
    if not done.stdout:
        raise UsageError(f"nothing was rehearsed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(world: World, case: str, trials: int) -> dict[str, Any] | None:
    """The first rank starts the rehearsal. What is kept of it: how it ends, memory, and the comparison."""
    if world.rank > 0:
        return None
    with tempfile.TemporaryDirectory() as folder:
        for _ in track(range(trials)):
            began_s = time.monotonic()
            found = rehearse(*WORLDS[case], Path(folder))
            seconds = time.monotonic() - began_s
    verdict = found["explanation"]["verdict"]
    return {
        "seconds": seconds,
        "hosts": found["hosts"],
        "ranks": found["ranks"],
        "kinds": found["kinds"],
        "found": verdict["kind"] if verdict else "nothing",
        "why": verdict["message"] if verdict else "",
        "peak_bytes": found["memory"][0]["allocated_bytes"],
        "compared_ops": found["check"]["ops"] if found["check"] else 0,
        "differences": len(found["check"]["differences"]) if found["check"] else 0,
    }


def judge(results: Results) -> Verdict:
    by_world = {name: results[name]["values"][0] for name in WORLDS}
    few, some, many = by_world.values()
    rows = [
        (name, each["hosts"], len(each["ranks"]), each["found"], in_binary_bytes(each["peak_bytes"]))
        for name, each in by_world.items()
    ]
    return Verdict(
        f"1,024 ranks would end in {many['found']}: {many['why']}. In the first 3 steps of 4 ranks {few['found']} is"
        f" found, and with 64 ranks {some['found']}. The rehearsal of 1,024 ranks took {in_seconds(many['seconds'])};"
        f" {len(many['ranks'])} of them were run. 4 rehearsed and 4 real ranks made {few['compared_ops']} ops each,"
        f" of which {few['differences']} differ",
        {"by_world": by_world},
        (
            always("rehearsed ranks make the same ops as real ones", few["compared_ops"] > 0 == few["differences"]),
            always("with 4 and with 64 ranks nothing is found", few["found"] == some["found"] == "nothing"),
            always("with 1,024 ranks, the uneven inputs are found", many["found"] == "ddp-uneven-inputs"),
            always("ranks up to 63 and from 64 on are told apart", many["kinds"] == [[0, 63], [64, 1023]]),
        ),
        (table("By world", ("world", "hosts", "ranks that were run", "found", "peak of a GPU"), rows),),
    )


def draw(results: Results, figure: Figure) -> None:
    for axes, (name, (size, _, _)) in zip(figure.subplots(1, len(WORLDS)), WORLDS.items(), strict=True):
        ended = results[name]["values"][0]
        for number, ranks in enumerate(ended["kinds"]):
            for rank in ranks:
                place, batches = ended["ranks"].index(rank), len(range(rank, BATCHES, size))
                axes.bar(place, batches, color=(BLUE, ORANGE)[number % 2], width=0.6)
                axes.text(place, batches, f"{batches}", ha="center", va="bottom", weight="bold")
        axes.set_xticks(range(len(ended["ranks"])), [f"rank {rank}" for rank in ended["ranks"]], size=8)
        axes.set_yticks([])
        axes.margins(y=0.15)
        found = "no finding" if ended["found"] == "nothing" else ended["found"]
        axes.set(title=f"{name}: {found}", xlabel="ranks that were run")
    figure.axes[0].set_ylabel("batches of a rank")


EXPERIMENT = Experiment(measure, judge, draw, trials=1, cases=CASES, code_on_page=(train, rehearse), least_ranks=1)
