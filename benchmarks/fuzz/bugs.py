"""The mutations. Each changes a script at one line for one rank, or returns None where it does not fit."""

import random
from collections.abc import Callable
from dataclasses import replace

from benchmarks.fuzz.edits import (
    before,
    beside,
    call_at,
    either,
    guilty,
    is_used,
    only,
    replaced,
    text_of,
    under,
    unless,
)
from benchmarks.fuzz.guilt import Mutant, alone_or_pair, mutant
from benchmarks.fuzz.script import Call, Script, Slot

Make = Callable[[Script, int, int, random.Random], Mutant | None]  # the place of the line, the guilty rank

# One call less, or one too many: the rank then waits in its next call, which may be one of another group, or a receive.
_LEFT_OUT = ("missing-rank", "mismatched-op", "cross-group-deadlock", "p2p-against-collective")
_ALSO = {
    "ddp-uneven-inputs": ("ddp-uneven-inputs", "missing-rank"),
    "mismatched-splits": ("mismatched-splits", "mismatched-shape"),
}


def wrong_argument(kind: str) -> Make:
    """Another argument on one rank: in the same line, or in an `if`."""

    def make(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
        line, call = call_at(script, place)
        name = rng.choice(sorted(name for name, slot in call.slots.items() if kind in slot.wrong))
        right, wrong = call.slots[name].right, call.slots[name].wrong[kind]
        in_place = call.sort == "loop" or (rng.random() < 0.4 and "," not in wrong)
        text = f"({wrong} if rank == {rank} else {right})" if in_place else wrong
        other = replace(line, call=replace(call, slots={**call.slots, name: Slot(text)}))
        new = (guilty(other),) if in_place else either(line, only(rank, call, rng), text_of(other))
        return mutant(replaced(script, place, *new), line, rank, _ALSO.get(kind, (kind,)), alone_or_pair(call, rank))

    return make


def other_call(kind: str) -> Make:
    """Another call in its place, on one rank."""

    def make(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
        line, call = call_at(script, place)
        new = either(line, only(rank, call, rng), call.instead[kind])
        if kind == "group-incomplete":  # one is missing here, and there the others wait for it
            new = (*new[:3], guilty(new[3]))
        ranks = [frozenset({rank, call.partners[rank]})] if kind == "p2p-deadlock" else alone_or_pair(call, rank)
        # gloo needs only the members of a group: that another rank did not make it may do no harm.
        is_always_seen = kind != "group-incomplete"
        return mutant(replaced(script, place, *new), line, rank, (kind,), ranks, is_always_seen)

    return make


def receive(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """A receive in place of a collective."""
    line, call = call_at(script, place)
    if is_used(line):
        return None
    peer = rng.choice([other for other in call.group_of(rank) if other != rank])
    new = either(line, only(rank, call, rng), f"dist.recv(torch.zeros(3), src={peer})")
    kinds = ("p2p-against-collective", "unmatched-recv")
    return mutant(replaced(script, place, *new), line, rank, kinds, alone_or_pair(call, rank))


def skip(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """One rank leaves a call out."""
    line, call = call_at(script, place)
    if is_used(line):
        return None
    is_forward = call.has_forward and call.sort == "framework"
    kinds = (*_LEFT_OUT, *(["ddp-uneven-inputs"] if is_forward else []))
    changed = replaced(script, place, *unless(line, only(rank, call, rng)))
    return mutant(changed, line, rank, kinds, alone_or_pair(call, rank), is_always_seen=False)


def skip_p2p(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """Whoever waits may be named, or who does not come; and the line of either."""
    line, call = call_at(script, place)
    if is_used(line):
        return None
    partner = call.partners[rank]
    changed = replaced(script, place, *unless(line, only(rank, call, rng)))
    lines = tuple(guilty(each) if each.call and _meets(each.call, partner, rank) else each for each in changed.lines)
    # Its next send or receive may wait for the partner, which waits for it; or meet the partner's under another tag.
    also = (
        "p2p-against-collective",
        "missing-rank",
        "p2p-deadlock",
        *(["tag-mismatch"] if "tag" in call.slots else []),
    )
    kinds = ("unmatched-recv" if "send" in line.text else "unmatched-send", *also)
    ranks = [frozenset({rank}), frozenset({partner}), frozenset({rank, partner})]
    return mutant(replace(changed, lines=lines), line, rank, kinds, ranks)


def _meets(call: Call, rank: int, partner: int) -> bool:
    return rank in call.ranks and call.partners.get(rank) == partner


def skip_wait(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """Nobody waits for an async op, or one rank does not."""
    line, call = call_at(script, place)
    on_all = rng.random() < 0.5
    changed = replaced(script, place, *unless(line, "True" if on_all else f"rank == {rank}"))
    ranks = frozenset(call.ranks) if on_all else frozenset({rank})
    return mutant(changed, line, rank, ("unwaited-work",), [ranks])


def overwrite(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """The buffer of an async op changes before it is waited for."""
    line, call = call_at(script, place)
    if not call.buffer:
        return None
    new = before(guilty(line), f"rank == {rank}", f"{call.buffer}.fill_(0.5)")
    return mutant(replaced(script, place, *new), line, rank, ("buffer-overwritten",), [frozenset({rank})])


def repeat(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """One call too many: the same again, or a barrier."""
    line, call = call_at(script, place)
    if line.text.startswith("return") or call.is_async:
        return None
    is_barrier = rng.random() < 0.5
    new = before(guilty(line), only(rank, call, rng), "dist.barrier()" if is_barrier else text_of(line))
    world = (tuple(range(script.world_size)),)
    ranks = alone_or_pair(replace(call, groups=world) if is_barrier else call, rank)
    # The others may have ended before the rank waits for them; of two ranks, either may then be named.
    others = [frozenset(both - {rank}) for both in ranks if len(both) == 2]
    kinds = (*_LEFT_OUT, "rank-exited-early")
    return mutant(replaced(script, place, *new), line, rank, kinds, [*ranks, *others])


def swap(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """This call and the next one, on one rank in the other order."""
    line, mine = call_at(script, place)
    following = script.lines[place + 1]
    theirs = following.call
    is_pair = theirs is not None and theirs.sort == "collective" and following.depth == line.depth
    if not is_pair or theirs is None or "return" in line.text + following.text:
        return None
    new = (
        beside(line, f"if {only(rank, mine, rng)}:"),
        beside(line, text_of(following), 1, is_guilty=True),
        beside(line, text_of(line), 1, is_guilty=True),
        beside(line, "else:"),
        under(line, is_guilty=True),
        under(following, is_guilty=True),
    )
    kinds: tuple[str, ...] = ("order-swap", "order-inversion")
    ranks = alone_or_pair(mine, rank)
    if mine.groups != theirs.groups or (mine.name != theirs.name and not mine.is_async):
        kinds = ("cross-group-deadlock", *kinds)
        ranks += [frozenset(mine.group_of(rank)), frozenset(theirs.group_of(rank))]
    is_always_seen = mine.groups == theirs.groups
    return mutant(replaced(script, place, *new, count=2), line, rank, kinds, ranks, is_always_seen)


def leave_loop(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """One rank leaves a loop early."""
    line, call = call_at(script, place)
    if call.loop is None or call.loop.turns < 2:
        return None
    turn = rng.randrange(1, call.loop.turns)  # after its first turn, later lines have what the loop assigns
    new = before(guilty(line), f"rank == {rank} and {call.loop.variable} == {turn}", "break")
    kinds = (*(["ddp-uneven-inputs"] if call.has_forward else []), *_LEFT_OUT)
    return mutant(replaced(script, place, *new), line, rank, kinds, alone_or_pair(call, rank), is_always_seen=False)


def straggle(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """Late in every turn of a loop."""
    line, _ = call_at(script, place)
    new = before(guilty(line), f"rank == {rank}", f"time.sleep({rng.choice((0.15, 0.2, 0.3))})")
    return mutant(replaced(script, place, *new), line, rank, ("straggler",), [frozenset({rank})])


def insert(kinds: tuple[str, ...], *texts: str) -> Make:
    """One rank does something else before a call."""

    def make(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
        line, call = call_at(script, place)
        accepted = kinds
        if call.sort == "init" and kinds[0] in ("rank-exited-early", "busy-rank"):
            accepted = ("world-incomplete", *kinds)
        if call.sort == "data" and kinds[0] == "busy-rank":
            accepted = ("input-stall", *kinds)
        changed = replaced(script, place, *before(line, only(rank, call, rng), rng.choice(texts)))
        return mutant(changed, replace(line, call=None), rank, accepted, [frozenset({rank})])

    return make
