"""A program with one bug on one rank and one line: which kinds, ranks and lines are a right answer is known.

A kind is accepted if it is an honest name of what was planted. A rank that leaves out a call is a missing rank; that
the next call, which meets the others' by chance, has another shape or dtype, is no answer. Where only two ranks take
part, nobody can say which of them is wrong: naming both is right, too.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.fuzz.script import Call, Line, Script, Slot

Ranks = frozenset[int]
Make = Callable[[Script, int, int, random.Random], "Mutant | None"]  # place of the line, guilty rank


@dataclass(frozen=True)
class Verdict:
    """What explain says of a run."""

    kind: str
    ranks: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class Guilt:
    """What a right verdict says."""

    kinds: tuple[str, ...]  # the best name first
    ranks: tuple[Ranks, ...]
    lines: frozenset[int]
    is_always_seen: bool = True  # else it is left out if the program ends well with the same results

    def accepts(self, verdict: Verdict, has_ended: bool) -> tuple[bool, bool, bool]:
        """Whether the kind, the ranks, and one of the lines are right. A rank that left out a call and has ended since
        may be named for its end."""
        kinds = (*self.kinds, "rank-exited-early") if has_ended and "missing-rank" in self.kinds else self.kinds
        return verdict.kind in kinds, frozenset(verdict.ranks) in self.ranks, bool(self.lines & set(verdict.lines))


@dataclass(frozen=True)
class Mutant:
    script: Script
    mutation: str
    guilty_rank: int
    guilt: Guilt


@dataclass(frozen=True)
class Chance:
    """One way to break a program: a mutation, and the line for it."""

    mutation: str
    place: int
    make: Make


def mutate(script: Script) -> Mutant | None:
    """The seed of the script also decides on its bug. None if no mutation fits."""
    rng = random.Random(f"bug {script.seed}")
    chances = list(_chances(script))
    for _ in range(8):
        names = sorted({chance.mutation for chance in chances})
        mutation = rng.choices(names, [_WEIGHTS.get(name, 1.0) for name in names])[0]
        chance = rng.choice([chance for chance in chances if chance.mutation == mutation])
        call = script.lines[chance.place].call
        assert call is not None
        mutant = chance.make(script, chance.place, rng.choice(call.ranks), rng)
        if mutant is not None:
            return replace(mutant, mutation=mutation)
    return None


def _chances(script: Script) -> Iterator[Chance]:
    for place, _, call in script.calls():
        for kind in sorted({kind for slot in call.slots.values() for kind in slot.wrong}):
            yield Chance(kind, place, _wrong_argument(kind))
        for kind in sorted(call.instead):
            yield Chance(kind, place, _other_call(kind))
        for name, make in _BY_SORT.get(call.sort, {}).items():
            yield Chance(name, place, make)
        if call.sort in _STOPPABLE:
            for name, make in _BEFORE.items():
                yield Chance(name, place, make)
        if call.loop and call.loop.turns >= _ENOUGH_TURNS and call.sort in ("collective", "framework"):
            yield Chance("straggler", place, _straggle)


# How the text changes.


def _with(script: Script, place: int, *new: Line) -> Script:
    """The line at this place replaced by others."""
    return replace(script, lines=(*script.lines[:place], *new, *script.lines[place + 1 :]))


def _only(rank: int, line: Line, rng: random.Random) -> str:
    """The condition for one rank; in a loop, sometimes for one of its turns."""
    assert line.call is not None
    if line.call.sort == "init":
        return f'os.environ["RANK"] == "{rank}"'
    loop = line.call.loop
    if loop is not None and rng.random() < 0.5:
        return f"rank == {rank} and {loop.variable} == {rng.randrange(loop.turns)}"
    return f"rank == {rank}"


def _plain(line: Line, text: str, depth: int = 0, is_guilty: bool = False) -> Line:
    """A line of other text at the place of this one."""
    return Line(line.depth + depth, text, None, is_guilty)


def _is_used(line: Line) -> bool:
    """Whether the program needs what this line returns or assigns."""
    is_async = line.call is not None and line.call.is_async
    return is_async or line.text.startswith("return") or "=" in line.text.split("(")[0]


def _rendered(line: Line) -> str:
    return line.render().strip()


def _finish(
    script: Script, line: Line, rank: int, kinds: Iterable[str], ranks: Iterable[Ranks], **known: bool
) -> Mutant:
    """The lines are the guilty ones, and those of calls that belong to it."""
    related = line.call.related if line.call else ()
    also = {number for number, each in enumerate(script.lines, 1) if each.call and each.call.name in related}
    lines = script.guilty_lines() | also
    return Mutant(script, "", rank, Guilt(tuple(kinds), tuple(ranks), frozenset(lines), **known))


def _alone_or_pair(call: Call, rank: int) -> list[Ranks]:
    """The guilty rank; or both ranks, if there are no others to compare with."""
    group = call.group_of(rank)
    partner = call.partners.get(rank)
    both = {rank, partner} if partner is not None else set(group) if len(group) == 2 else {rank}
    return [frozenset({rank}), frozenset(both)]


# Arguments and calls that differ on one rank.

_ALSO = {"mismatched-splits": ("mismatched-splits", "mismatched-shape")}


def _wrong_argument(kind: str) -> Make:
    def make(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
        line = script.lines[place]
        call = line.call
        assert call is not None
        name = rng.choice(sorted(name for name, slot in call.slots.items() if kind in slot.wrong))
        right, wrong = call.slots[name].right, call.slots[name].wrong[kind]
        in_place = call.sort == "loop" or (rng.random() < 0.4 and "," not in wrong and name != "layers")
        if in_place:
            slot = Slot(f"({wrong} if rank == {rank} else {right})")
            changed = replace(line, call=replace(call, slots={**call.slots, name: slot}), is_guilty=True)
            new: tuple[Line, ...] = (changed,)
        else:
            other = replace(line, call=replace(call, slots={**call.slots, name: Slot(wrong)}))
            new = _either(line, _rendered(other), _only(rank, line, rng))
        return _finish(_with(script, place, *new), line, rank, _ALSO.get(kind, (kind,)), _alone_or_pair(call, rank))

    return make


def _either(line: Line, wrong: str, condition: str) -> tuple[Line, ...]:
    return (
        _plain(line, f"if {condition}:"),
        _plain(line, wrong, 1, is_guilty=True),
        _plain(line, "else:"),
        replace(line, depth=line.depth + 1),
    )


def _other_call(kind: str) -> Make:
    """Another call in its place, on one rank."""

    def make(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
        line = script.lines[place]
        assert line.call is not None
        new = _either(line, line.call.instead[kind], _only(rank, line, rng))
        if kind == "group-incomplete":  # which line: where one is missing, or where the others wait for it
            new = (*new[:3], replace(new[3], is_guilty=True))
        ranks = _alone_or_pair(line.call, rank)
        if kind == "p2p-deadlock":
            ranks = [frozenset({rank, line.call.partners[rank]})]
        return _finish(_with(script, place, *new), line, rank, (kind,), ranks)

    return make


def _receive(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """A receive in place of a collective."""
    line = script.lines[place]
    assert line.call is not None
    if _is_used(line):
        return None
    peer = rng.choice([other for other in line.call.group_of(rank) if other != rank])
    new = _either(line, f"dist.recv(torch.zeros(3), src={peer})", _only(rank, line, rng))
    kinds = ("p2p-against-collective", "unmatched-recv")
    return _finish(_with(script, place, *new), line, rank, kinds, _alone_or_pair(line.call, rank))


# Calls that one rank leaves out, makes twice, or makes in another order.


def _skip(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    line = script.lines[place]
    call = line.call
    assert call is not None
    if _is_used(line):
        return None
    new = (_plain(line, f"if not ({_only(rank, line, rng)}):"), replace(line, depth=line.depth + 1, is_guilty=True))
    kinds: tuple[str, ...] = ("missing-rank", "mismatched-op")
    if call.has_forward and call.sort == "framework":
        kinds = (*kinds, "ddp-uneven-inputs")
    changed = _with(script, place, *new)
    return _finish(changed, line, rank, kinds, _alone_or_pair(call, rank), is_always_seen=False)


def _skip_p2p(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """Whoever waits may be named, or who does not come."""
    line = script.lines[place]
    call = line.call
    assert call is not None
    if _is_used(line):
        return None
    new = (_plain(line, f"if not ({_only(rank, line, rng)}):"), replace(line, depth=line.depth + 1, is_guilty=True))
    kind = "unmatched-recv" if "send" in line.text else "unmatched-send"
    partner = call.partners[rank]
    ranks = [frozenset({rank}), frozenset({partner}), frozenset({rank, partner})]
    # The line of the partner is right, too.
    changed = _with(script, place, *new)
    lines = tuple(
        replace(each, is_guilty=True)
        if each.call and each.call.sort == "p2p" and _meets(call, each.call, rank)
        else each
        for each in changed.lines
    )
    kinds = (kind, "p2p-against-collective", "missing-rank")
    return _finish(replace(changed, lines=lines), line, rank, kinds, ranks)


def _meets(call: Call, other: Call, rank: int) -> bool:
    partner = call.partners[rank]
    return partner in other.ranks and other.partners.get(partner) == rank


def _skip_wait(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    line = script.lines[place]
    assert line.call is not None
    on_all = rng.random() < 0.5
    condition = "False" if on_all else f"rank != {rank}"
    new = (_plain(line, f"if {condition}:"), replace(line, depth=line.depth + 1, is_guilty=True))
    ranks = [frozenset(line.call.ranks)] if on_all else [frozenset({rank})]
    return _finish(_with(script, place, *new), line, rank, ("unwaited-work",), ranks)


def _overwrite(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """The buffer changes between the call and its wait."""
    line = script.lines[place]
    assert line.call is not None
    if not line.call.buffer:
        return None
    new = (
        _plain(line, f"if rank == {rank}:"),
        _plain(line, f"{line.call.buffer}.fill_(0.5)", 1, is_guilty=True),
        replace(line, is_guilty=True),
    )
    return _finish(_with(script, place, *new), line, rank, ("buffer-overwritten",), [frozenset({rank})])


def _repeat(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """One call too many: the same again, or a barrier."""
    line = script.lines[place]
    call = line.call
    assert call is not None
    if line.text.startswith("return") or call.is_async:
        return None
    more = _rendered(line) if rng.random() < 0.5 else "dist.barrier()"
    new = (
        _plain(line, f"if {_only(rank, line, rng)}:"),
        _plain(line, more, 1, is_guilty=True),
        replace(line, is_guilty=True),
    )
    group = call.groups if more != "dist.barrier()" else (tuple(range(script.world_size)),)
    ranks = _alone_or_pair(replace(call, groups=group), rank)
    return _finish(_with(script, place, *new), line, rank, ("missing-rank", "mismatched-op"), ranks)


def _swap(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """This call and the next one, on one rank in the other order."""
    if place + 1 >= len(script.lines):
        return None
    line, following = script.lines[place], script.lines[place + 1]
    mine, theirs = line.call, following.call
    if mine is None or theirs is None or theirs.sort != "collective" or following.depth != line.depth:
        return None
    if line.text.startswith("return") or following.text.startswith("return"):
        return None
    new = (
        _plain(line, f"if {_only(rank, line, rng)}:"),
        _plain(line, _rendered(following), 1, is_guilty=True),
        _plain(line, _rendered(line), 1, is_guilty=True),
        _plain(line, "else:"),
        replace(line, depth=line.depth + 1, is_guilty=True),
        replace(following, depth=line.depth + 1, is_guilty=True),
    )
    changed = replace(script, lines=(*script.lines[:place], *new, *script.lines[place + 2 :]))
    kinds: tuple[str, ...] = ("order-swap", "order-inversion")
    ranks = _alone_or_pair(mine, rank)
    if mine.groups != theirs.groups or (mine.name != theirs.name and not mine.is_async):
        kinds = ("cross-group-deadlock", *kinds)
        ranks += [frozenset(mine.group_of(rank)), frozenset(theirs.group_of(rank))]
    return _finish(changed, line, rank, kinds, ranks, is_always_seen=mine.groups == theirs.groups)


# What one rank does before a call.


def _insert(kinds: tuple[str, ...], *texts: str) -> Make:
    def make(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
        line = script.lines[place]
        assert line.call is not None
        new = (
            _plain(line, f"if {_only(rank, line, rng)}:"),
            _plain(line, rng.choice(texts), 1, is_guilty=True),
            line,
        )
        accepted = kinds
        if line.call.sort == "init" and kinds[0] in ("rank-exited-early", "busy-rank"):
            accepted = ("world-incomplete", *kinds)
        if line.call.sort == "data" and kinds[0] == "busy-rank":
            accepted = ("input-stall", *kinds)
        return _finish(_with(script, place, *new), line, rank, accepted, [frozenset({rank})])

    return make


def _break(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """One rank leaves a loop early."""
    line = script.lines[place]
    assert line.call is not None
    loop = line.call.loop
    if loop is None:
        return None
    new = (
        _plain(line, f"if rank == {rank} and {loop.variable} == {rng.randrange(loop.turns)}:"),
        _plain(line, "break", 1, is_guilty=True),
        replace(line, is_guilty=True),
    )
    kinds: tuple[str, ...] = ("missing-rank", "mismatched-op")
    if line.call.has_forward:
        kinds = ("ddp-uneven-inputs", *kinds)
    changed = _with(script, place, *new)
    return _finish(changed, line, rank, kinds, _alone_or_pair(line.call, rank), is_always_seen=False)


def _straggle(script: Script, place: int, rank: int, rng: random.Random) -> Mutant | None:
    """Late in every turn of a loop."""
    line = script.lines[place]
    assert line.call is not None
    new = (
        _plain(line, f"if rank == {rank}:"),
        _plain(line, f"time.sleep({rng.choice((0.15, 0.2, 0.3))})", 1, is_guilty=True),
        replace(line, is_guilty=True),
    )
    return _finish(_with(script, place, *new), line, rank, ("straggler",), [frozenset({rank})])


_ENOUGH_TURNS = 5
# Every line can be preceded by these. Without weights they would be most of the mutants, and rare arguments be missed.
_WEIGHTS = dict.fromkeys(("exit", "exit with code", "exit in thread", "kill", "raise", "sleep", "stop"), 0.25)
_WEIGHTS |= {"compute": 0.06}
_WEIGHTS |= dict.fromkeys(("ddp-model-mismatch", "ddp-uneven-inputs", "ddp-unused-parameter", "group-incomplete"), 4.0)
_WEIGHTS |= dict.fromkeys(
    ("mismatched-root", "mismatched-splits", "straggler", "swap", "wrong-peer", "p2p-deadlock"), 3.0
)
_STOPPABLE = ("collective", "framework", "init", "group", "data", "p2p")
_BY_SORT: dict[str, dict[str, Make]] = {
    "collective": {"skip": _skip, "repeat": _repeat, "swap": _swap, "break": _break, "receive": _receive},
    "framework": {"skip framework": _skip, "break": _break},
    "p2p": {"skip send or receive": _skip_p2p},
    "wait": {"skip wait": _skip_wait, "overwrite": _overwrite},
}
_BEFORE: dict[str, Make] = {
    "raise": _insert(
        ("rank-failed",),
        'raise ValueError("bad record in shard 7")',
        '{}["tokenizer"]',
        "torch.ones(3) @ torch.ones(4)",
    ),
    "exit": _insert(("rank-exited-early",), "sys.exit(0)", "sys.exit()"),
    "exit with code": _insert(("rank-exited-early", "rank-failed"), "sys.exit(3)", "os._exit(4)"),
    "exit in thread": _insert(
        ("rank-exited-early", "rank-failed"), "threading.Thread(target=os._exit, args=(5,)).start(), time.sleep(60)"
    ),
    "kill": _insert(("rank-killed",), "os.kill(os.getpid(), signal.SIGKILL)", "os.abort()"),
    "stop": _insert(("stopped-rank",), "os.kill(os.getpid(), signal.SIGSTOP)"),
    "sleep": _insert(
        ("busy-rank",),
        "time.sleep(600)",
        "queue.Queue().get()",
        "threading.Semaphore(0).acquire()",
        "threading.Event().wait()",
    ),
    "compute": _insert(("busy-rank",), "sum(i * i for i in range(10**10))"),
}
