"""Does order hold without a barrier? Each rank notes when it wrote its message and when it had its result.

An inversion is a trial in which some rank's result came before another rank's message.
"""

import time

import torch.distributed as dist

import rollcall

TRIALS = 200


def trial(world: rollcall.World, with_barrier: bool) -> tuple[int, int]:
    """When this rank wrote its message, and when it had its result."""
    message_ns = time.monotonic_ns()
    if with_barrier:
        world.barrier()
    result = [[1, 2, 3]]
    assert result
    return message_ns, time.monotonic_ns()


def inversions(world: rollcall.World, with_barrier: bool) -> int:
    mine = []
    for _ in range(TRIALS):
        world.barrier()  # all begin together
        mine.append(trial(world, with_barrier))
    everyone: list[list[tuple[int, int]]] = [[] for _ in range(world.size)]
    dist.all_gather_object(everyone, mine)
    # One machine has one monotonic clock, so the times of all ranks can be compared.
    return sum(min(r for _, r in times) < max(m for m, _ in times) for times in zip(*everyone, strict=True))


with rollcall.init() as world:
    for with_barrier in (False, True):
        count = inversions(world, with_barrier)
        if world.is_first:
            arm = "with a barrier" if with_barrier else "without a barrier"
            print(f"{arm}: in {count} of {TRIALS} trials a result came before another rank's message")
