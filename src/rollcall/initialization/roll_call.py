"""The roll call: every rank answers in the store before a group is made.

Torch's groups say nothing of who is missing. Here each rank leaves a card; rank 0 reads them all and gives
the word, one verdict for everybody: go, or one sentence that says what is wrong. Any rank whose time is over
may give the word too. Whoever is first decides, so all ranks go or none does.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.distributed import Store

from rollcall.errors import RollcallError, UsageError, WorldError
from rollcall.initialization.environment import Place, expect_host
from rollcall.initialization.stores import Claim, Meeting
from rollcall.initialization.waiting import poll
from rollcall.world import Seat, get_hostname, get_process_id, locate, seat

FAREWELL_S = 5.0

Word = dict[str, Any]  # the verdict as the store holds it


@dataclass(frozen=True)
class Card:
    """What one rank says of itself."""

    rank: int
    host: str
    machine: str  # two machines may share a name
    pid: int
    local_rank: int | None
    local_world_size: int | None
    node_rank: int | None
    nnodes: int | None
    backend: str | None  # None: the best that all can
    gpus: tuple[str, ...]  # the host's names of the GPUs that this rank sees


@dataclass(frozen=True)
class Verdict:
    """What the roll call settled for one rank."""

    backend: str
    seat: Seat
    gpu: int | None


def fill_card(place: Place, backend: str | None, gpus: tuple[str, ...]) -> Card:
    return Card(
        rank=place.rank,
        host=get_hostname(),
        machine=_read_machine(),
        pid=get_process_id(),
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        node_rank=place.node_rank,
        nnodes=place.nnodes,
        backend=backend,
        gpus=gpus,
    )


def call_roll(meeting: Meeting, place: Place, card: Card, timeout_s: float, deadline: float) -> Verdict:
    """Answer, and wait for the verdict. Raises the error that all ranks raise."""
    store = meeting.store
    _refuse_other_size(store, place, card, meeting.claim)
    _refuse_double(store, card)
    if place.rank == 0:
        _wait_for_all(store, place, timeout_s, deadline)
    word = poll(lambda: _read_word(store), deadline)
    if word is None:
        word = _decide(store, _word_of_absence(_read_cards(store, place.world_size), place, timeout_s))
    store.add("heard", 1)
    if word["error"]:
        if place.rank == 0:
            _wait_for_ears(store, place.world_size)
        meeting.leave(place.rank == 0)
        raise (UsageError if word["usage"] else WorldError)(word["error"])
    mine = word["ranks"][place.rank]
    return Verdict(backend=word["backend"], seat=Seat(*mine["seat"]), gpu=mine["gpu"])


def say_goodbye(meeting: Meeting, rank: int, world_size: int, wait: bool) -> None:
    """Leave the store. Rank 0 goes last, within reason: the store may live in its process.

    Nobody touches the store after its own `left`: the last one removes a file, and torch's FileStore would
    make it anew, and read it for ever.
    """
    if rank == 0 and wait:
        others = world_size - 1
        poll(lambda: meeting.store.add("left", 0) >= others or None, time.monotonic() + FAREWELL_S)
    meeting.leave(meeting.store.add("left", 1) >= world_size)


def _refuse_other_size(store: Store, place: Place, card: Card, claim: Claim) -> None:
    if place.world_size == claim.world_size:
        return
    error = (
        f"rank {card.rank} (process {card.pid} on {card.host}) was told of a world of {place.world_size}, "
        f"rank 0 (process {claim.pid} on {claim.host}) of {claim.world_size}: give all the same world_size"
    )
    _decide(store, {"error": error, "usage": True})
    raise UsageError(error)


def _refuse_double(store: Store, card: Card) -> None:
    number = store.add(f"answers/{card.rank}", 1)
    if number == 1:
        store.set(_key(card.rank), json.dumps(asdict(card)))
        return
    # The first one may be between its two writes.
    first = poll(lambda: _read_card(store, card.rank), time.monotonic() + 2.0)
    other = f"process {first.pid} on {first.host}" if first else "another process"
    error = (
        f"rank {card.rank} is there twice: {other}, and process {card.pid} on {card.host}: "
        "give every process a rank of its own"
    )
    _decide(store, {"error": error, "usage": False})
    raise WorldError(error)


def _wait_for_all(store: Store, place: Place, timeout_s: float, deadline: float) -> None:
    keys = [_key(rank) for rank in range(place.world_size)]
    poll(lambda: (store.check(keys) or store.check(["word"])) or None, deadline)
    if store.check(["word"]):
        return
    cards = _read_cards(store, place.world_size)
    if len(cards) < place.world_size:
        _decide(store, _word_of_absence(cards, place, timeout_s))
        return
    try:
        _decide(store, _settle(cards))
    except RollcallError as error:
        _decide(store, {"error": str(error), "usage": isinstance(error, UsageError)})


def _wait_for_ears(store: Store, world_size: int) -> None:
    """Let those who are there hear the bad news before the store goes with us."""
    there = len(_read_cards(store, world_size))
    poll(lambda: store.add("heard", 0) >= there or None, time.monotonic() + 2.0)


def _decide(store: Store, word: Word) -> Word:
    """Give the word, unless somebody was faster; return the one that counts."""
    decided: Word = json.loads(store.compare_set("word", "", json.dumps(word)))
    return decided


def _settle(cards: Sequence[Card]) -> Word:
    """Go: which backend, and which seat and GPU for each rank."""
    seats = take_seats(cards)
    gpus = [pick_gpu(card.gpus, place.local_rank) for card, place in zip(cards, seats, strict=True)]
    backend = choose_backend(cards, gpus)
    ranks = [
        {"seat": list(vars(place).values()), "gpu": gpu if "nccl" in backend else None}
        for place, gpu in zip(seats, gpus, strict=True)
    ]
    return {"error": "", "backend": backend, "ranks": ranks}


def take_seats(cards: Sequence[Card]) -> list[Seat]:
    """The launcher's word where it gave one, else what the hosts of all ranks tell."""
    found = seat([(card.host, card.machine) for card in cards])
    return [
        Seat(
            node_rank=place.node_rank if card.node_rank is None else card.node_rank,
            nnodes=place.nnodes if card.nnodes is None else card.nnodes,
            local_rank=place.local_rank if card.local_rank is None else card.local_rank,
            local_world_size=place.local_world_size if card.local_world_size is None else card.local_world_size,
        )
        for card, place in zip(cards, found, strict=True)
    ]


def pick_gpu(gpus: Sequence[str], local_rank: int) -> int | None:
    """The index of the GPU for a local rank; one who sees a single GPU was given it."""
    if len(gpus) == 1:
        return 0
    return local_rank if local_rank < len(gpus) else None


def choose_backend(cards: Sequence[Card], gpus: Sequence[int | None]) -> str:
    """The one asked for, else nccl where every rank has a GPU of its own, else gloo."""
    asked = {card.backend: card for card in reversed(cards) if card.backend is not None}
    if len(asked) > 1:
        says = ", ".join(f"rank {card.rank} {name}" for name, card in asked.items())
        raise UsageError(f"the ranks ask for different backends ({says}): pass the same to all")
    problem = find_gpu_conflict(cards, gpus)
    backend = next(iter(asked), None) or ("gloo" if problem else "nccl")
    if problem and "nccl" in backend:
        raise UsageError(f"{problem}, but nccl needs one for each rank: start fewer ranks, or use gloo")
    return backend


def find_gpu_conflict(cards: Sequence[Card], gpus: Sequence[int | None]) -> str:
    owners: dict[tuple[str, str, str], Card] = {}
    for card, gpu in zip(cards, gpus, strict=True):
        if gpu is None:
            return f"rank {card.rank} on {card.host} has no GPU of its own ({len(card.gpus)} there)"
        name = (card.host, card.machine, card.gpus[gpu])
        if name in owners:
            return f"ranks {owners[name].rank} and {card.rank} on {card.host} share GPU {card.gpus[gpu]}"
        owners[name] = card
    return ""


def _word_of_absence(cards: Sequence[Card], place: Place, timeout_s: float) -> Word:
    came = {card.rank for card in cards}
    absent = [rank for rank in range(place.world_size) if rank not in came]
    origins: dict[str, list[int]] = {}
    for rank in absent:
        origins.setdefault(expect_from(rank, cards, place), []).append(rank)
    who = "; ".join(f"{_name(ranks)}, expected from {origin}" for origin, ranks in origins.items())
    error = (
        f"after {timeout_s:g} s {len(came)} of {place.world_size} ranks had come, missing: {who}: "
        "see whether they have failed or were never started, or use a longer timeout_s"
    )
    return {"error": error, "usage": False}


def expect_from(rank: int, cards: Sequence[Card], place: Place) -> str:
    """Where a missing rank should have come from, as far as the launcher and those who came can tell."""
    listed = expect_host(place, rank) if _fills_in_order(cards, place) else None
    if listed:
        return listed
    if place.nnodes == 1 or place.master_addr in ("localhost", "127.0.0.1", "::1"):
        return f"this host ({get_hostname()})"
    spans = [_span(card) for card in cards]
    for card, span in zip(cards, spans, strict=True):
        # A host whose own ranks contradict each other does not fill its seats in a row.
        rivals = [other for seen, other in zip(cards, spans, strict=True) if seen.host == card.host]
        if span is not None and rank in span and set(rivals) == {span}:
            return card.host
    empty = sorted(set(range(place.nnodes or 0)) - {card.node_rank for card in cards})
    if empty:
        nodes = ", ".join(map(str, empty))
        return f"node{'s' if len(empty) > 1 else ''} {nodes}, from which nobody came"
    return "a host that nobody has named (ranks started by hand)"


def _fills_in_order(cards: Sequence[Card], place: Place) -> bool:
    """Whether those who came sit where they would if hosts were filled one after the other."""
    return bool(place.ranks_per_host) and all(
        locate(card.rank, place.ranks_per_host) == (card.node_rank, card.local_rank) for card in cards
    )


def _span(card: Card) -> range | None:
    """The ranks of a card's host, where its launcher said enough."""
    if card.local_rank is None or card.local_world_size is None:
        return None
    first = card.rank - card.local_rank
    return range(first, first + card.local_world_size)


def _name(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def _key(rank: int) -> str:
    return f"card/{rank}"


def _read_card(store: Store, rank: int) -> Card | None:
    if not store.check([_key(rank)]):
        return None
    fields = json.loads(store.get(_key(rank)))
    return Card(**{**fields, "gpus": tuple(fields["gpus"])})


def _read_cards(store: Store, world_size: int) -> list[Card]:
    return [card for rank in range(world_size) if (card := _read_card(store, rank)) is not None]


def _read_word(store: Store) -> Word | None:
    if not store.check(["word"]):
        return None
    word: Word = json.loads(store.get("word"))
    return word


def _read_machine() -> str:
    """What tells two machines of one name apart, and is the same for all processes of one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
