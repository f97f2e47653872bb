"""What was noticed in a run. Each finding carries its evidence; nothing is read out of the texts of errors."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rollcall.explain import source, waits
from rollcall.explain.calls import Call, Pair, collectives, deviants, pairs
from rollcall.explain.load import Op, Rank, Run, Site
from rollcall.record import sites


@dataclass(frozen=True)
class Finding:
    """Something that was noticed: what kind, which ranks to look at, in which call, on which lines."""

    kind: str
    ranks: tuple[int, ...]
    message: str
    op: str = ""
    group: str = ""
    seq: int = 0
    sites: tuple[Site, ...] = ()
    since_ns: int = 0
    evidence: dict[str, Any] = field(default_factory=dict)


def find(run: Run) -> list[Finding]:
    """All findings, the most telling first."""
    view = _View(run)
    found = [finding for look in _LOOKS for finding in look(view)]
    return sorted(found, key=lambda f: (_WEIGHT.get(f.kind, 50), f.since_ns))


class _View:
    """A run with what several looks need."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.calls = collectives(run)
        self.pairs = pairs(run)
        self.blocked = {rank.number: op for rank in run.ranks.values() if (op := rank.blocked) is not None}

    def has_ended(self, rank: int) -> bool:
        found = self.run.ranks.get(rank)
        return found is not None and (found.exit_code is not None or found.ended_ns > 0)

    def waits_for(self, op: Op) -> list[int]:
        """Whose move it is that a blocked op waits for."""
        if op.is_point_to_point:
            return [op.peer] if op.peer >= 0 else [rank for rank in op.group.ranks if rank != op.rank]
        call = next((c for c in self.calls if c.group == op.group and c.seq == op.seq), None)
        return call.missing if call else []


# Python's and torch's own files in which a program waits for its data.
_DATA = re.compile(r"/torch/utils/data/|/queue\.py$|/multiprocessing/(queues|connection|pool)\.py$")


def _ranks(numbers: Iterable[int]) -> str:
    numbers = sorted(numbers)
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _where(op: Op) -> str:
    return f"{op.op} at {op.site}" if op.site else op.op


def _sites(ops: Iterable[Op]) -> tuple[Site, ...]:
    return tuple(dict.fromkeys(op.site for op in ops if op.site is not None))


def _of_call(kind: str, call: Call, ranks: list[int], message: str, ops: Iterable[Op], **evidence: Any) -> Finding:
    first = min(call.ops.values(), key=lambda op: op.entered_ns)
    return Finding(
        kind, tuple(ranks), message, first.op, call.group.name, call.seq, _sites(ops), first.entered_ns, evidence
    )


# Ranks that ended.


def _deaths(view: _View) -> Iterator[Finding]:
    for rank in view.run.ranks.values():
        last = rank.ops[-1] if rank.ops else None
        if rank.cause:
            sites = _sites([last] if last else [])
            yield Finding("stopped-rank", (rank.number,), f"rank {rank.number} {rank.cause}", sites=sites)
        elif rank.error and not _is_echo(view, rank):
            sites = rank.error_site.chain[:3] if rank.error_site else ()
            message = f"rank {rank.number} failed at {rank.error_site}: {rank.error}"
            yield Finding("rank-failed", (rank.number,), message, sites=sites, since_ns=rank.ended_ns)
        elif rank.exit_code is not None and rank.exit_code < 0:
            sites = _sites([last] if last else [])
            after = _where(last) if last else "its start"
            message = f"rank {rank.number} was killed by signal {-rank.exit_code}, after {after}"
            yield Finding("rank-killed", (rank.number,), message, sites=sites)


def _is_echo(view: _View, rank: Rank) -> bool:
    """Whether its error came out of an op that somebody else did not come to, or died in."""
    last = next((op for op in reversed(rank.ops) if op.is_failed), None)
    if last is None:
        return False
    absent = [other for other in view.waits_for(last) if other in view.run.ranks]
    if any(view.has_ended(other) or other in view.blocked for other in absent):
        return True
    others = [other for other in view.run.ranks.values() if other.number != rank.number]
    return any(_died_before(other, rank) for other in others)


def _died_before(other: Rank, rank: Rank) -> bool:
    if other.exit_code is not None and other.exit_code < 0:
        return True
    died_in_op = bool(other.ops) and other.ops[-1].is_failed
    return bool(other.ended_ns) and other.ended_ns < rank.ended_ns and not died_in_op


def _early_exits(view: _View) -> Iterator[Finding]:
    """A rank that is done, while others are in calls that need it."""
    for call in view.calls:
        gone = [r for r in call.missing if r in view.run.ranks and view.run.ranks[r].exit_code == 0]
        stuck = [rank for rank, op in call.ops.items() if op.is_blocked or op.is_failed]
        if gone and stuck:
            yield _explain_exit(view, call, gone, [call.ops[rank] for rank in stuck])
            return


def _explain_exit(view: _View, call: Call, gone: list[int], waiting: list[Op]) -> Finding:
    """Who left in the middle, or who came to its end without this one call."""
    ranks = [view.run.ranks[rank] for rank in gone]
    exits = tuple(rank.exit_site for rank in ranks if rank.exit_site is not None)
    knew_it = any(op.site == waiting[0].site for rank in ranks for op in rank.ops)
    kind = "rank-exited-early" if exits or knew_it else "missing-rank"
    message = f"{_ranks(gone)} ended while {_ranks(op.rank for op in waiting)} wait in {_where(waiting[0])}"
    finding = _of_call(kind, call, gone, message, waiting)
    return replace(finding, sites=(*exits, *finding.sites))


# Collectives.


def _mismatches(view: _View) -> Iterator[Finding]:
    for call in view.calls:
        finding = _mismatch(view, call)
        if finding is not None:
            yield finding
            return  # what follows in a group that is out of step is noise


_ALIKE: tuple[tuple[str, str, Callable[[Op], Any]], ...] = (
    ("mismatched-splits", "have lists of objects of", lambda op: op.signature.get("objects", 0)),
    ("mismatched-reduce-op", "reduce with", lambda op: op.reduce),
    ("mismatched-root", "have as root", lambda op: op.peer),
    ("mismatched-dtype", "have the dtype", lambda op: tuple(op.signature.get("dtypes", ()))),
    ("mismatched-shape", "have the shape", lambda op: str(op.signature.get("shapes", ()))),
    ("mismatched-splits", "have the splits", lambda op: str(op.signature.get("splits", ()))),
)


def _worlds(view: _View) -> Iterator[Finding]:
    """init_process_group that did not come to its end."""
    for call in view.calls:
        stuck = [op for op in call.ops.values() if op.op == "init" and (op.is_blocked or op.is_failed)]
        if stuck:
            absent = [rank for rank in view.run.ranks if rank not in call.ops]
            ranks = absent or [op.rank for op in stuck]
            never = f"; {_ranks(absent)} never called it" if absent else ", which waits for more ranks than there are"
            message = f"{_ranks(op.rank for op in stuck)} did not get through {_where(stuck[0])}{never}"
            exits = tuple(site for rank in absent if (site := view.run.ranks[rank].exit_site) is not None)
            finding = _of_call("world-incomplete", call, sorted(ranks), message, stuck)
            yield replace(finding, sites=(*exits, *finding.sites))
            return


def _mismatch(view: _View, call: Call) -> Finding | None:
    names = {rank: op.op for rank, op in call.ops.items()}
    if (inverted := _inverted(view, call)) is not None:
        return inverted
    if len(set(names.values())) > 1:
        odd = deviants(names)
        kind = _kind_of_difference(call, odd)
        told = "; ".join(f"rank {rank} is in {_where(op)}" for rank, op in sorted(call.ops.items()))
        return _of_call(
            kind, call, odd, f"call {call.seq} of group {call.group.name}: {told}", call.ops.values(), seen=names
        )
    op_name = next(iter(names.values()))
    for kind, verb, read in _ALIKE:
        values = {rank: read(op) for rank, op in call.ops.items()}
        if len(set(values.values())) > 1 and _must_agree(kind, call):
            odd = _misfits(call) if op_name == "all_to_all" else deviants(values)
            told = "; ".join(f"rank {rank}: {value}" for rank, value in sorted(values.items()))
            op = next(iter(call.ops.values()))
            message = f"in {_where(op)} the ranks {verb} different things ({told})"
            kind = {"new_group": "group-incomplete", "ddp": "ddp-model-mismatch"}.get(op.op, kind)
            return _of_call(kind, call, odd, message, [call.ops[rank] for rank in odd], values=values)
    return None


def _inverted(view: _View, call: Call) -> Finding | None:
    """Async ops that all ranks issue, only not in the same order."""
    if not all(op.is_async for op in call.ops.values()):
        return None
    plans = {
        rank: tuple(
            (op.op, str(op.signature), op.reduce, op.peer, op.site)
            for op in view.run.ranks[rank].ops
            if op.group == call.group and not op.is_point_to_point and call.seq <= op.seq < call.seq + _AHEAD
        )
        for rank in call.ops
    }
    same = len({tuple(sorted(map(str, plan))) for plan in plans.values()}) == 1
    if not same or len(set(plans.values())) == 1:
        return None
    odd = deviants(plans)
    message = (
        f"{_ranks(odd)} issued the same async ops in another order than the others, from {_where(call.ops[odd[0]])} on"
    )
    ops = [op for op in view.run.ranks[odd[0]].ops if op.group == call.group and call.seq <= op.seq < call.seq + _AHEAD]
    return _of_call("order-inversion", call, odd, message, ops)


_AHEAD = 8


def _must_agree(kind: str, call: Call) -> bool:
    """all_to_all may have other sizes on each rank, as long as the halves fit; gather and scatter only where alike."""
    op = next(iter(call.ops.values())).op
    if op == "all_to_all" and kind in ("mismatched-shape", "mismatched-splits"):
        return bool(_bad_ways(call))
    return True


def _misfits(call: Call) -> list[int]:
    """The rank that most of what does not fit comes from or goes to; all that are involved where none stands out."""
    ways = _bad_ways(call)
    counts = Counter(rank for way in ways for rank in set(way))
    (first, most), *rest = counts.most_common() or [(-1, 0)]
    if len(call.group.ranks) > 2 and rest and most > rest[0][1]:
        return [first]
    return sorted(counts)


def _bad_ways(call: Call) -> list[tuple[int, int]]:
    """From whom to whom something else is sent than is expected."""
    ranks = list(call.group.ranks)
    sent: dict[tuple[int, int], Any] = {}
    expected: dict[tuple[int, int], Any] = {}
    for rank, op in call.ops.items():
        splits = op.signature.get("splits") or []
        if not splits or splits[0] != "single":
            given, taken = (splits[1], splits[2]) if len(splits) > 2 else ([], [])
        else:
            shapes = op.signature.get("shapes") or [[0]]
            given = splits[2] or [shapes[0][0] // len(ranks)] * len(ranks)
            taken = splits[1] or [splits[3][0] // len(ranks)] * len(ranks)
        sent.update({(rank, other): each for other, each in zip(ranks, given, strict=False)})
        expected.update({(other, rank): each for other, each in zip(ranks, taken, strict=False)})
    return [way for way in sent if way in expected and sent[way] != expected[way]]


def _kind_of_difference(call: Call, odd: list[int]) -> str:
    """Ranks are in different ops: how the odd ones went astray, going by where their ways part in the source."""
    others = [rank for rank in call.ops if rank not in odd] or odd
    for rank in odd:
        for other in others:
            mine, theirs = call.ops[rank], call.ops[other]
            if mine.op == theirs.op or mine.site is None or theirs.site is None:
                continue
            where = source.parting(mine.site, theirs.site)
            if where is None:
                continue
            back_and_forth = source.calls_later(where.file, where.mine, where.theirs) and source.calls_later(
                where.file, where.theirs, where.mine
            )
            match source.relation(where):
                case "exclusive" if back_and_forth or source.is_choice_of_loop(where):
                    return "order-swap"
                case "same":  # a loop over things that come in another order
                    return "order-swap"
                case "after" | "before":
                    return "missing-rank"
    return "mismatched-op"


def _missing(view: _View) -> Iterator[Finding]:
    """Collectives that some ranks wait in, and others never come to."""
    for call in view.calls:
        if not call.missing or not call.blocked:
            continue
        absent = [rank for rank in call.missing if rank in view.run.ranks]
        if not absent or all(view.has_ended(rank) for rank in absent):
            continue
        waiting = [call.ops[rank] for rank in call.blocked]
        elsewhere = [view.blocked[rank] for rank in absent if rank in view.blocked]
        yield _explain_absence(view, call, absent, waiting, elsewhere)
        return


def _explain_absence(view: _View, call: Call, absent: list[int], waiting: list[Op], elsewhere: list[Op]) -> Finding:
    told = f"{_ranks(op.rank for op in waiting)} wait in {_where(waiting[0])}"
    kind, looked_at = "missing-rank", absent
    if first := next(iter(elsewhere), None):
        told += f", while {_ranks(absent)} {'are' if len(absent) > 1 else 'is'} in {_where(first)}"
        circle = _circle(view, first.rank)
        if waiting[0].op == "new_group":
            kind = "group-incomplete"
        elif first.op == "new_group":
            kind, looked_at = "group-incomplete", call.blocked
        elif first.is_point_to_point:
            kind = "p2p-against-collective"
            looked_at = _odd_ones(absent, call)
        elif first.group != call.group and circle:
            kind = "cross-group-deadlock"
            same = set(first.group.ranks) == set(call.group.ranks)
            looked_at = _odd_ones(absent, call) if same else circle
            elsewhere = [view.blocked[rank] for rank in circle]
    elif stalled := _stalled(view, absent):
        kind, place = stalled
        told += f"; {_ranks(absent)} {'are' if len(absent) > 1 else 'is'} busy at {place}"
        return replace(_of_call(kind, call, looked_at, told, waiting), sites=(place, *_sites(waiting)))
    else:
        told += f"; {_ranks(absent)} did not come"
        if waiting[0].op == "new_group":
            kind = "group-incomplete"
        elif waiting[0].op == "init":
            kind = "world-incomplete"
    return _of_call(kind, call, looked_at, told, [*waiting, *elsewhere])


def _stalled(view: _View, absent: list[int]) -> tuple[str, Site] | None:
    """What ranks do that are in no op and have not ended: where they were when they were asked."""
    for rank in absent:
        stack = view.run.ranks[rank].stack
        users = [site for site in stack if sites.is_users_file(site.file)]
        if users and not view.has_ended(rank):
            within = stack[: stack.index(users[0])]
            waits_for_data = any(_DATA.search(site.file) for site in within)
            return "input-stall" if waits_for_data else "busy-rank", users[0]
    return None


def _odd_ones(absent: list[int], call: Call) -> list[int]:
    """The fewer are to be looked at; both sides where they are equally many."""
    present = list(call.ops)
    if len(absent) == len(present):
        return sorted({*absent, *present})
    return sorted(absent if len(absent) < len(present) else present)


def _circle(view: _View, start: int) -> list[int]:
    """The ranks of a circle of waiting that goes through this one."""
    paths = [[start]]
    while paths:
        path = paths.pop()
        for rank in view.waits_for(view.blocked[path[-1]]) if path[-1] in view.blocked else []:
            if rank == start:
                return sorted(path)
            if rank not in path:
                paths.append([*path, rank])
    return []


def _strangers(view: _View) -> Iterator[Finding]:
    """Ops on a group by ranks that are not in it: torch passes over them."""
    found = [op for rank in view.run.ranks.values() for op in rank.ops if op.is_strange]
    if found:
        first = min(found, key=lambda op: op.entered_ns)
        same = sorted({op.rank for op in found if op.site == first.site})
        message = f"{_ranks(same)} called {_where(first)} on a group without being in it"
        yield _of_pair("non-member-call", same, message, [first])


def _threads(view: _View) -> Iterator[Finding]:
    """One group used by several threads, in another order on another rank."""
    for call in view.calls:
        threads = {rank: op.thread for rank, op in call.ops.items()}
        sites = {rank: op.site for rank, op in call.ops.items()}
        if len(set(sites.values())) > 1 and any(threads.values()):
            others = [
                r for r in view.run.ranks.values() if len({op.thread for op in r.ops if op.group == call.group}) > 1
            ]
            if others:
                message = (
                    f"group {call.group.name} is used by several threads at once, and the order differs between ranks"
                )
                yield _of_call("concurrent-calls", call, deviants(sites), message, call.ops.values(), threads=threads)
                return


# Sends and receives.


def _deadlocks(view: _View) -> Iterator[Finding]:
    """Ranks that wait for each other in a circle of sends and receives."""
    for start in view.blocked:
        path: list[int] = []
        rank = start
        while rank in view.blocked and rank not in path and view.blocked[rank].is_point_to_point:
            path.append(rank)
            waited_for = view.waits_for(view.blocked[rank])
            if len(waited_for) != 1:
                break
            rank = waited_for[0]
        else:
            if rank in path:
                cycle = path[path.index(rank) :]
                if _is_honest_cycle(view, cycle):
                    ops = [view.blocked[each] for each in cycle]
                    told = ", ".join(f"rank {op.rank} in {_where(op)} for rank {op.peer}" for op in ops)
                    message = f"a circle of ranks that wait for each other: {told}"
                    yield Finding(
                        "p2p-deadlock",
                        tuple(sorted(cycle)),
                        message,
                        ops[0].op,
                        ops[0].group.name,
                        0,
                        _sites(ops),
                        min(op.entered_ns for op in ops),
                        {"cycle": cycle},
                    )
                    return


def _is_honest_cycle(view: _View, cycle: list[int]) -> bool:
    """Not one of a send and a receive that only miss each other by their tags or partners."""
    ops = [view.blocked[rank] for rank in cycle]
    return len({op.op for op in ops}) == 1 or len(cycle) > 2


def _lonely(view: _View) -> Iterator[Finding]:
    """Sends nobody receives, receives nobody sends to, and why."""
    recvs = [p.recv for p in view.pairs if p.send is None and p.recv is not None]
    sends = [p.send for p in view.pairs if p.recv is None and p.send is not None]
    stuck = sorted((op for op in recvs if op.is_blocked or op.is_failed), key=lambda op: op.entered_ns)
    for explain in (_by_tag, _by_sender, _by_receiver):
        for recv in stuck:
            if (finding := explain(view, recv, sends, recvs)) is not None:
                yield finding
                return
    if stuck:
        recv = stuck[0]
        message = f"rank {recv.rank} waits in {_where(recv)} for rank {recv.peer}, which never sends to it"
        yield _of_pair("unmatched-recv", [recv.rank], message, [recv])
    elif sends:
        send = min(sends, key=lambda op: op.entered_ns)
        message = f"rank {send.rank}'s {_where(send)} to rank {send.peer} was never received"
        yield _of_pair("unmatched-send", [send.rank], message, [send])


def _of_pair(kind: str, ranks: Iterable[int], message: str, ops: list[Op]) -> Finding:
    first = ops[0]
    return Finding(
        kind, tuple(sorted(ranks)), message, first.op, first.group.name, first.seq, _sites(ops), first.entered_ns
    )


def _by_tag(view: _View, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """The sender sent, under another tag."""
    for send in sends:
        if (send.rank, send.peer) == (recv.peer, recv.rank) and send.tag != recv.tag:
            message = (
                f"rank {recv.rank} waits in {_where(recv)} for tag {recv.tag} of rank {recv.peer}, which sent tag"
                f" {send.tag} in {_where(send)}"
            )
            ops = _odd_side(view, send, recv, lambda op: op.tag)
            return _of_pair("tag-mismatch", {op.rank for op in ops}, message, ops)
    return None


def _by_receiver(view: _View, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """Somebody else sent to it, and the one it waits for does not: it waits for the wrong one."""
    if any((send.rank, send.peer) == (recv.peer, recv.rank) for send in sends):
        return None
    for send in sends:
        if send.peer == recv.rank:
            message = (
                f"rank {recv.rank} waits in {_where(recv)} for rank {recv.peer}, but it is rank {send.rank} that sends"
                f" to it, in {_where(send)}"
            )
            return _of_pair("wrong-peer", [recv.rank], message, [recv])
    return None


def _by_sender(view: _View, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """The one it waits for sent to somebody else, who does not wait for that."""
    for send in sends:
        if send.rank == recv.peer and not any((r.rank, r.peer) == (send.peer, send.rank) for r in recvs):
            message = (
                f"rank {recv.rank} waits in {_where(recv)} for rank {recv.peer}, which sends to rank {send.peer}"
                f" instead, in {_where(send)}"
            )
            return _of_pair("wrong-peer", [send.rank], message, [send])
    return None


def _odd_side(view: _View, send: Op, recv: Op, read: Callable[[Op], Any]) -> list[Op]:
    """Of two that do not fit, the one that does as nobody else; both, where that cannot be told."""
    others = [
        op
        for rank in view.run.ranks.values()
        for op in rank.ops
        if op.is_point_to_point and op is not send and op is not recv
    ]
    like_send = sum(read(op) == read(send) for op in others)
    like_recv = sum(read(op) == read(recv) for op in others)
    if len(view.run.ranks) < 3 or like_send == like_recv:
        return [send, recv]
    return [recv] if like_send > like_recv else [send]


def _uneven_pairs(view: _View) -> Iterator[Finding]:
    """Sends and receives that met, with other sizes or types."""
    for pair in view.pairs:
        if pair.send is None or pair.recv is None:
            continue
        kind = _unevenness(pair)
        if kind:
            send, recv = pair.send, pair.recv
            told = f"{send.signature.get('shapes')} {send.signature.get('dtypes')} was sent,"
            told += f" {recv.signature.get('shapes')} {recv.signature.get('dtypes')} received"
            message = f"rank {send.rank}'s {_where(send)} and rank {recv.rank}'s {_where(recv)} do not fit: {told}"
            field_name = "dtypes" if kind == "p2p-dtype" else "shapes"
            odd = _odd_side(view, send, recv, lambda op, name=field_name: op.signature.get(name))  # type: ignore[misc]
            ranks = {op.rank for op in odd} if kind == "p2p-dtype" else {send.rank, recv.rank}
            yield _of_pair(kind, ranks, message, [send, recv])
            return


def _unevenness(pair: Pair) -> str:
    assert pair.send is not None
    assert pair.recv is not None
    if pair.send.signature.get("dtypes") != pair.recv.signature.get("dtypes"):
        return "p2p-dtype"
    return "p2p-size" if pair.send.size_bytes != pair.recv.size_bytes else ""


# Handles.


def _handles(view: _View) -> Iterator[Finding]:
    """Async ops whose buffer changed before anybody waited for them."""
    changed = [
        op
        for rank in view.run.ranks.values()
        for op in rank.ops
        if op.is_async and not op.is_failed and op.was_waited_for and op.version_waited > op.version_issued
    ]
    if changed:
        first = min(changed, key=lambda op: op.entered_ns)
        same = sorted({op.rank for op in changed if op.site == first.site})
        message = f"{_ranks(same)} changed the buffer of {_where(first)} before it was waited for"
        yield _of_pair("buffer-overwritten", same, message, [first])


def _unwaited(view: _View) -> Iterator[Finding]:
    lazy = [op for rank in view.run.ranks.values() for op in rank.ops if op.is_async and not op.was_waited_for]
    ended = {rank.number for rank in view.run.ranks.values() if rank.exit_code == 0}
    lazy = [op for op in lazy if not op.is_failed and not op.completed_ns and op.rank in ended]
    if lazy:
        first = min(lazy, key=lambda op: op.entered_ns)
        same = sorted({op.rank for op in lazy if op.site == first.site})
        message = (
            f"{_ranks(same)} never waited for {_where(first)}: its result may not have been there when it was used"
        )
        yield _of_pair("unwaited-work", same, message, [first])


# DDP.


def _uneven_inputs(view: _View) -> Iterator[Finding]:
    """Ranks that went through their DDP module more or less often than the others, where that ended badly."""
    forwards = {r.number: [op for op in r.ops if op.op == "ddp_forward"] for r in view.run.ranks.values()}
    counts = {rank: len(ops) for rank, ops in forwards.items()}
    failed = [rank for rank in view.run.ranks.values() if rank.error or rank.exit_code is None or rank.exit_code]
    if not failed or len(set(counts.values())) < 2 or not all(counts.values()):
        return
    odd = deviants(counts)
    told = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(counts.items()))
    last = [forwards[rank][-1] for rank in odd]
    stuck = [view.blocked[rank] for rank in odd if rank in view.blocked]
    message = f"the ranks had different numbers of batches for their DDP module ({told})"
    yield _of_pair("ddp-uneven-inputs", odd, message, [*last, *stuck])


# Order and speed.


def _inversions(view: _View) -> Iterator[Finding]:
    """Two ops of a group that some ranks issued in one order and others in the other."""
    by_group: dict[str, dict[int, Call]] = {}
    for call in view.calls:
        if not call.missing:
            by_group.setdefault(call.group.name, {})[call.seq] = call
    for calls in by_group.values():
        for seq, call in calls.items():
            after = calls.get(seq + 1)
            if after is None:
                continue
            orders = {rank: (call.ops[rank].site, after.ops[rank].site) for rank in call.ops if rank in after.ops}
            swapped = {
                order for order in orders.values() if (order[1], order[0]) in orders.values() and order[0] != order[1]
            }
            if swapped:
                odd = deviants(orders)
                ops = [call.ops[odd[0]], after.ops[odd[0]]]
                is_async = any(op.is_async for op in call.ops.values())
                message = f"{_ranks(odd)} issued {_where(ops[0])} and {_where(ops[1])} in another order than the others"
                yield _of_call("order-inversion" if is_async else "order-swap", call, odd, message, ops)
                return


def _stragglers(view: _View) -> Iterator[Finding]:
    found = waits.count(view.run, view.calls)
    total_s = sum(found.caused_s.values())
    if found.calls < _ENOUGH_CALLS or not total_s or not found.run_s:
        return
    rank, caused_s = max(found.caused_s.items(), key=lambda item: item[1])
    others = max(len(view.run.ranks) - 1, 1)
    share = caused_s / others / found.run_s
    if (
        caused_s > _MOST_OF_IT * total_s
        and share > _NOTABLE
        and caused_s > _NOTABLE_S
        and found.last[rank] > found.calls / 2
    ):
        ops = [c.ops[rank] for c in view.calls if rank in c.ops and c.ops[rank].op not in ("init", "ddp", "new_group")]
        message = (
            f"rank {rank} was the last in {found.last[rank]} of {found.calls} calls, and the others waited for it"
            f" {share:.0%} of the time: without its delay the run would be that much shorter"
        )
        yield replace(_of_pair("straggler", [rank], message, ops[-1:]), evidence={"waits": found.caused_s})


_ENOUGH_CALLS, _MOST_OF_IT, _NOTABLE, _NOTABLE_S = 8, 0.7, 0.2, 0.3

_LOOKS: tuple[Callable[[_View], Iterator[Finding]], ...] = (
    _deaths,
    _worlds,
    _early_exits,
    _strangers,
    _threads,
    _mismatches,
    _missing,
    _deadlocks,
    _lonely,
    _uneven_pairs,
    _handles,
    _unwaited,
    _uneven_inputs,
    _inversions,
    _stragglers,
)
# The lower, the more it explains: a death explains a wait, a mismatch explains a hang.
_WEIGHT = {
    "stopped-rank": 1,
    "world-incomplete": 2,
    "group-incomplete": 3,
    "ddp-model-mismatch": 4,
    "non-member-call": 5,
    "concurrent-calls": 6,
    "order-inversion": 9,
    "order-swap": 10,
    "mismatched-op": 11,
    "mismatched-reduce-op": 12,
    "mismatched-root": 12,
    "mismatched-dtype": 13,
    "mismatched-shape": 14,
    "mismatched-splits": 15,
    "p2p-dtype": 16,
    "p2p-size": 17,
    "ddp-uneven-inputs": 18,
    "rank-killed": 19,
    "rank-failed": 20,
    "rank-exited-early": 21,
    "tag-mismatch": 23,
    "wrong-peer": 24,
    "cross-group-deadlock": 25,
    "p2p-against-collective": 26,
    "p2p-deadlock": 27,
    "unmatched-recv": 32,
    "busy-rank": 33,
    "input-stall": 33,
    "buffer-overwritten": 34,
    "unmatched-send": 35,
    "unwaited-work": 36,
    "missing-rank": 38,
    "straggler": 60,
}
