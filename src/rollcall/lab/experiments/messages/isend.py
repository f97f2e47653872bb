"""rollcall lab isend

What may I touch before wait()? isend and irecv return at once, and the transfer goes on in the background.

What you gain: work that needs no communication is done during the transfer. What goes wrong: a tensor that is
overwritten before wait() may be sent with its new content, and a tensor that is read before wait() still has its old
content. Rank 0 sends, rank 1 receives; other ranks do nothing.
"""

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, always, compared, table, usually
from rollcall.lab.plots import BLUE, GREEN, GREY, PALE, RED, Figure, label_rows
from rollcall.lab.progress import track
from rollcall.units import in_seconds

ELEMENTS = 1 << 20  # 4 MB
WORK_S = 0.006
WAYS = ("recv, then work", "irecv, work, wait")
CHECKS = ("overwritten early", "overwritten after wait", "read early", "read after wait")


def work() -> None:
    """Work that takes time and needs no communication, such as a computation on a GPU."""
    time.sleep(WORK_S)


def receive(world: World, overlap: bool) -> float:
    """The sender works before it sends, and the receiver has work to do as well: seconds until both are done."""
    tensor = torch.zeros(ELEMENTS, device=world.device)
    world.barrier()
    start_s = time.monotonic()
    if world.rank == 0:
        work()
        dist.send(tensor, dst=1)
    elif world.rank == 1 and overlap:
        request = dist.irecv(tensor, src=0)
        work()
        request.wait()
    elif world.rank == 1:
        dist.recv(tensor, src=0)
        work()
    return time.monotonic() - start_s


def overwrite(world: World, value: int, wait_first: bool) -> int:
    """Rank 0 sends `value` and reuses its tensor, before or after wait(). How many wrong elements has rank 1?"""
    tensor = torch.full((ELEMENTS,), float(value), device=world.device)
    world.barrier()
    if world.rank == 0:
        request = dist.isend(tensor, dst=1)
        if wait_first:
            request.wait()
        tensor.fill_(-1)  # the next batch
        if not wait_first:
            request.wait()
    elif world.rank == 1:
        tensor.zero_()
        time.sleep(0.001)  # the receiver is busy for a moment
        dist.recv(tensor, src=0)
        return int((tensor != value).sum())
    return 0


def read_early(world: World, value: int) -> tuple[int, int]:
    """Rank 1 reads what it receives before wait(), and after it. How many elements are wrong each time?"""
    tensor = torch.full((ELEMENTS,), float(value), device=world.device)
    world.barrier()
    if world.rank == 0:
        dist.send(tensor, dst=1)
    elif world.rank == 1:
        tensor.zero_()
        request = dist.irecv(tensor, src=0)
        early = int((tensor != value).sum())
        request.wait()
        return early, int((tensor != value).sum())
    return 0, 0


def measure(world: World, trials: int) -> dict[str, Any]:
    """All ways in every trial, so that disturbances on this machine affect all of them."""
    seen: dict[str, list[Any]] = {name: [] for name in (*WAYS, *CHECKS)}
    for value in track(range(1, trials + 1)):
        seen["recv, then work"].append(receive(world, overlap=False))
        seen["irecv, work, wait"].append(receive(world, overlap=True))
        seen["overwritten early"].append(overwrite(world, value, wait_first=False))
        seen["overwritten after wait"].append(overwrite(world, value, wait_first=True))
        early, after = read_early(world, value)
        seen["read early"].append(early)
        seen["read after wait"].append(after)
    return seen


def count_wrong(seen: dict[str, list[Any]]) -> dict[str, int]:
    """Counts the trials in which the receiver had wrong content, by check."""
    return {check: sum(count > 0 for count in seen[check]) for check in CHECKS}


def judge(results: Results) -> Verdict:
    seen = results[1]
    trials = len(seen["read early"])
    blocking_s, overlapped_s = (median(seen[way]) for way in WAYS)
    wrong = count_wrong(seen)
    share = {check: median([count / ELEMENTS for count in seen[check] if count] or [0.0]) for check in CHECKS}
    rows = [(each, f"{wrong[each]} of {trials}", f"{share[each]:.0%}" if wrong[each] else "—") for each in CHECKS]
    return Verdict(
        f"irecv, work, wait() took {in_seconds(overlapped_s)}; recv and then work took {in_seconds(blocking_s)}"
        f" ({compared(blocking_s, overlapped_s)}). A tensor that was overwritten before wait() arrived wrong in"
        f" {wrong['overwritten early']} of {trials} trials ({share['overwritten early']:.0%} of its elements); one that"
        f" was read before wait() had not arrived in {wrong['read early']}. After wait() it was wrong in"
        f" {wrong['overwritten after wait']} and {wrong['read after wait']}",
        {
            "trials": trials,
            "blocking_s": blocking_s,
            "overlapped_s": overlapped_s,
            "saved_share": 1 - overlapped_s / blocking_s,
            "wrong_trials": wrong,
            "wrong_share": share,
        },
        (
            always("after wait() the sender may write", wrong["overwritten after wait"] == 0),
            always("after wait() the receiver may read", wrong["read after wait"] == 0),
            usually("if the sender overwrites before wait(), wrong content arrives", wrong["overwritten early"] > 0),
            usually("if the receiver reads before wait(), it sees old content", wrong["read early"] > 0),
            usually("working during the transfer saves time", overlapped_s < blocking_s),
        ),
        (table("Trials with wrong content on the receiver", ("what", "trials", "share of elements, if wrong"), rows),),
    )


def draw(results: Results, figure: Figure) -> None:
    seen = results[1]
    left, right = figure.subplots(1, 2)
    for row, (way, colour) in enumerate(zip(WAYS, (GREY, BLUE), strict=True)):
        times_ms = [seconds * 1e3 for seconds in seen[way]]
        left.barh(row, median(times_ms), color=colour, height=0.55, alpha=0.9)
        left.scatter(times_ms, [row] * len(times_ms), s=9, color="#222222", alpha=0.5, zorder=3)
        left.text(0.25, row, f"{median(times_ms):.1f} ms", color="white", weight="bold", va="center")
    label_rows(left, WAYS)
    left.set(title="What overlap gains", xlabel="ms until received and worked (median)")
    left.set_xlim(0, 1.65e3 * max(median(seen[way]) for way in WAYS))
    trials = len(seen["read early"])
    for row, wrong in enumerate(count_wrong(seen).values()):
        colour = RED if wrong else GREEN
        right.barh(row, trials, color=PALE, height=0.55)
        right.barh(row, wrong, color=colour, height=0.55)
        right.text(trials * 1.02, row, f"{wrong} of {trials}", va="center", color=colour, weight="bold")
    label_rows(right, CHECKS)
    right.set(title="What goes wrong before wait()", xlabel="trials with wrong content", xlim=(0, trials * 1.22))


EXPERIMENT = Experiment(measure, judge, draw, trials=20, code_on_page=(receive, overwrite, read_early))
