"""rollcall lab send

What does a blocking send/recv do? Every rank starts with a tensor of zero. Rank 0 adds one and sends it to all
others.

Then four questions. Does recv make a new tensor, or write into mine? Why must I pass a tensor to recv? Does the sender
still own its tensor? And when send has returned, has the other rank received?
"""

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, always, table, usually
from rollcall.lab.plots import GREY, Figure, add_arrow, colour_of, label_ranks, label_rows
from rollcall.lab.progress import track
from rollcall.units import in_binary_bytes, in_seconds

LATE_S = 0.005
SIZES_BYTES = (4, 4 << 20)


def send_one(world: World) -> dict[str, Any]:
    """Rank 0 adds one and sends. The others receive, and look at what happened to their tensor."""
    tensor = torch.zeros(1, device=world.device)
    before, address = tensor.item(), tensor.data_ptr()
    source = 0
    if world.rank == 0:
        tensor += 1
        for other in range(1, world.size):
            dist.send(tensor, dst=other)
    else:
        source = dist.recv(tensor, src=0)
    after, same_address = tensor.item(), tensor.data_ptr() == address
    tensor += 10 * world.rank  # a receiver changes what it has received
    world.barrier()
    return {
        "before": before,
        "after": after,
        "same_address": same_address,
        "recv_returned": source,  # the rank of the sender, not a tensor
        "own_later": tensor.item(),
    }


def receive_without_tensor(world: World) -> str:
    """A receiver without a tensor: torch raises an error, since recv only fills memory that is there."""
    if world.rank == 0:
        return ""
    try:
        dist.recv(None, src=0)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "it was not refused"


def send_to_late_rank(world: World, size_bytes: int) -> list[int]:
    """Rank 1 calls recv late. When does rank 0's send return? (nanoseconds: start, end)"""
    tensor = torch.zeros(size_bytes // 4, device=world.device)
    world.barrier()
    if world.rank == 1:
        time.sleep(LATE_S)
    start_ns = time.monotonic_ns()
    if world.rank == 0:
        dist.send(tensor, dst=1)
    elif world.rank == 1:
        dist.recv(tensor, src=0)
    return [start_ns, time.monotonic_ns()]


def measure(world: World, trials: int) -> dict[str, Any]:
    """Notes for each trial which values arrive, and when a send returns."""
    seen: list[dict[str, Any]] = []
    late: dict[str, list[list[int]]] = {str(size): [] for size in SIZES_BYTES}
    for _ in track(range(trials)):
        seen.append(send_one(world))
        for size in SIZES_BYTES:
            late[str(size)].append(send_to_late_rank(world, size))
    return {"seen": seen, "without_tensor": receive_without_tensor(world), "late": late}


def once(world: World) -> None:
    """Run once, node by node: each rank logs its values before and after."""
    seen = send_one(world)
    world.logger.info(f"before: {seen['before']:g}, after: {seen['after']:g}")


def describe_sends(results: Results, size: int) -> dict[str, float]:
    """How long rank 0's sends took, and how many returned before rank 1's recv began, and before it ended."""
    sends, recvs = (results[rank]["late"][str(size)] for rank in (0, 1))
    return {
        "send_s": median((end - start) / 1e9 for start, end in sends),
        "before_recv_began": sum(send[1] < recv[0] for send, recv in zip(sends, recvs, strict=True)),
        "before_recv_ended": sum(send[1] < recv[1] for send, recv in zip(sends, recvs, strict=True)),
    }


def judge(results: Results) -> Verdict:
    trials = len(results[0]["seen"])
    everyone = [seen for result in results for seen in result["seen"]]
    receivers = everyone[trials:]
    small, large = (describe_sends(results, size) for size in SIZES_BYTES)
    all_have_one = all(seen["before"] == 0 and seen["after"] == 1 for seen in everyone)
    in_place = all(seen["same_address"] for seen in receivers)
    is_unchanged = all(seen["own_later"] == 1 for seen in results[0]["seen"])
    rows = []
    for rank, result in enumerate(results):
        seen = result["seen"][-1]
        same = "yes" if seen["same_address"] else "NO"
        rows.append((rank, f"{seen['before']:g}", f"{seen['after']:g}", same, f"{seen['own_later']:g}"))
    return Verdict(
        f"all {len(results)} ranks began with 0 and {'ended with 1' if all_have_one else 'did NOT all end with 1'} in"
        f" {trials} trials. recv wrote into the receiver's own tensor"
        f" ({'its address stayed the same' if in_place else 'its address CHANGED'}), and when receivers changed it"
        f" later, the sender's tensor {'stayed' if is_unchanged else 'did NOT stay'} as it was. A send to a rank that"
        f" is {in_seconds(LATE_S)} late took {in_seconds(small['send_s'])} for 4 B and {in_seconds(large['send_s'])}"
        f" for {in_binary_bytes(SIZES_BYTES[1])}. It returned before the receiver had everything in"
        f" {small['before_recv_ended']} and {large['before_recv_ended']} of {trials} trials: when send returns, you may"
        f" reuse the tensor, but it may not have arrived",
        {"trials": trials, "late_s": LATE_S, "sends": dict(zip(map(str, SIZES_BYTES), (small, large), strict=True))},
        (
            always("all ranks end with 1", all_have_one),
            always("recv writes in place: same data_ptr", in_place),
            always("receivers cannot change the sender's tensor", is_unchanged),
            always("recv returns the sender's rank", all(seen["recv_returned"] == 0 for seen in receivers)),
            always("recv without a tensor is an error", all("Error" in r["without_tensor"] for r in results[1:])),
            usually(
                "some sends return before the tensor has arrived",
                small["before_recv_ended"] + large["before_recv_ended"] > 0,
            ),
        ),
        (
            table(
                "Values on each rank (last trial)",
                ("rank", "before", "after", "same data_ptr", "after receivers changed theirs"),
                rows,
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    for rank, result in enumerate(results):
        seen = result["seen"][-1]
        for x, value in enumerate((seen["before"], seen["after"], seen["own_later"])):
            box = {"boxstyle": "round,pad=0.45", "fc": colour_of(rank) if value else "#BBBBBB", "ec": "none"}
            left.text(x, rank, f"{value:g}", ha="center", va="center", size=14, color="white", weight="bold", bbox=box)
        if rank:
            add_arrow(left, (0.28, 0), (0.72, rank), GREY, lw=1.4, shrinkA=4)
    left.set_xticks(range(3), ["before", "after\nsend/recv", "receivers add\n10 × rank"])
    label_ranks(left, len(results))
    left.spines[["left", "bottom"]].set_visible(False)
    left.set(title="One send: values on each rank", xlim=(-0.5, 2.5))
    calls = [(size, rank, op) for size in SIZES_BYTES for rank, op in ((0, "send"), (1, "recv"))]
    for row, (size, rank, _) in enumerate(calls):
        trial = len(results[0]["late"][str(size)]) // 2
        zero = results[0]["late"][str(size)][trial][0]
        start, end = ((ns - zero) / 1e6 for ns in results[rank]["late"][str(size)][trial])
        right.barh(row, end - start, left=start, color=colour_of(rank), height=0.55)
        right.text(end, row, f"  {end - start:.2f} ms", va="center", size=9)
    label_rows(right, [f"{in_binary_bytes(size)}, {op}, rank {rank}" for size, rank, op in calls])
    right.margins(x=0.2)
    right.set(title=f"The receiver is {in_seconds(LATE_S)} late (one trial)", xlabel="milliseconds")


EXPERIMENT = Experiment(
    measure, judge, draw, trials=20, once=once, code_on_page=(send_one, receive_without_tensor, send_to_late_rank)
)
