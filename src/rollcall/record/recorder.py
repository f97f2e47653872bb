"""The recorder of this process: turns what the hooks see into records of a ring.

It never changes the program: if it fails, it turns itself off with one line, and the op goes on.
"""

import importlib
import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from rollcall.errors import say
from rollcall.record import hooks, ring_format, sites, stacks
from rollcall.record.cpp import pen
from rollcall.record.cuda_timing import DeviceClock
from rollcall.record.hooks.process_group import inside, members
from rollcall.record.hooks.sink import NOBODY, PHASE, STRANGE, Seen
from rollcall.record.ring import Ring
from rollcall.record.sampler import Sampler
from rollcall.record.tensors import describe, version

# Looked up once: they are used for every op.
_getframe, _get_ident, _chain = sys._getframe, threading.get_ident, sites.chain
_Tensor = torch.Tensor
_PLAIN = {torch.Tensor}
_MOST_TEXT = 500
_UNSEEN = (0, None, False)
# Its number, its ranks, and how we hear of its end: a group that is destroyed must go, with its threads.
_Group = tuple[int, list[int], weakref.ref[Any] | None]


class Recorder:
    """Listens to the hooks. Marks are places in the ring."""

    def __init__(self, ring: Ring, world_size: int) -> None:
        self._ring, self._world_size = ring, world_size
        self._add, self._completed = ring.add, ring.completed  # looked up once, since they are used for every op
        self._device = DeviceClock(ring)
        self._sampler: Sampler | None = None
        self._lock = threading.RLock()  # a signal's handler may communicate, too
        self._groups: dict[int, _Group] = {}  # by id
        self._sites: dict[sites.Places, int] = {}
        self._signatures = ring.numbers("signature")
        # By mark: its flags, the tensor whose version counts, and whether that is on a GPU.
        self._seen: dict[int, tuple[int, Any, bool]] = {}
        self._waited_for: set[int] = set()  # async ops that somebody sits in wait() for
        self._threads: dict[int, int] = {}
        self._main = threading.main_thread().ident or 0
        self._phase_site = 0
        self._phases: dict[int, int] = {}  # by mark: the phase around it
        self._is_on = True

    def begin(self) -> None:
        hooks.put_up()
        hooks.listen(self)
        os.register_at_fork(after_in_child=self.turn_off)  # a DataLoader's worker is not its rank

    def turn_off(self) -> None:
        self._is_on = False

    # What the hooks tell.

    def enter(self, op: int, group: Any, seen: Seen) -> int:
        if not self._is_on:
            return NOBODY
        try:
            with self._lock:
                number, ranks, _ = self._groups.get(id(group)) or self._group(group)
                tensors, peer, tag, reduce, splits, flags = seen
                if peer >= 0 and peer < len(ranks):
                    peer = ranks[peer]
                first: Any = tensors[0] if tensors else None
                key: Any = None
                if type(first) is _Tensor and len(tensors) == 1:  # as most ops have it
                    try:
                        size_bytes, is_cuda = first.nbytes, first.is_cuda
                        key = (first.shape, first.dtype, splits, inside.objects)
                    except RuntimeError:  # it is sparse or nested
                        pass
                if key is None:
                    size_bytes, is_cuda, key = _describe_all(seen)
                is_watched = first is not None and (flags & ring_format.ASYNC or is_cuda)
                mark = self._add(
                    op,
                    flags,
                    number,
                    # Of a bucket, that of the backward that it is a part of.
                    self._phase_site if flags & ring_format.BUCKET else self._site(),
                    self._signatures.get(key) or self._signature(key, seen),
                    peer,
                    tag,
                    0 if _get_ident() == self._main else self._thread(),
                    reduce,
                    version(first) if is_watched else 0,
                    size_bytes,
                )
                if is_watched:
                    self._seen[mark] = (flags, first, is_cuda)
                return mark
        except Exception as error:
            self.give_up(error)
            return NOBODY

    def issued(self, mark: int) -> None:
        if mark != NOBODY and self._is_on:
            self._ring.issued(mark)

    def waiting(self, mark: int) -> None:
        if mark != NOBODY and self._is_on:
            flags, tensor, _ = self._seen.get(mark, _UNSEEN)
            self._waited_for.add(mark)
            self._ring.waiting(mark, flags | ring_format.WAITED, version(tensor) if tensor is not None else 0)

    def completed(self, mark: int, *others: int) -> None:
        """All at the same moment."""
        if mark != NOBODY and self._is_on:
            # Nothing but ops that are not async, as most programs have it.
            if not (others or self._seen or self._waited_for):
                self._completed(mark)
                return
            self._waited_for.discard(mark)
            seen = self._seen.pop(mark, None) if self._seen else None
            if seen is not None and seen[2]:
                self.note_on_device((mark, *others))
            else:
                self._ring.completed(mark)
                for other in others:
                    self._ring.completed(other)
            for other in others:
                self._waited_for.discard(other)
                self._seen.pop(other, None)

    def note_on_device(self, marks: Iterable[int]) -> None:
        """The host is past them; the GPU may not be."""
        try:
            self._device.note(tuple(marks))
        except Exception as error:
            self.give_up(error)

    def failed(self, mark: int) -> None:
        if mark != NOBODY and self._is_on:
            self._waited_for.discard(mark)
            flags, *_ = self._seen.pop(mark, _UNSEEN)
            self._ring.failed(mark, flags)

    def dropped(self, mark: int) -> None:
        """Nobody will wait for it any more: its tensor is not ours to keep."""
        self._seen.pop(mark, None)

    def begin_phase(self, name: str, op: int = PHASE, expected: int = 0) -> int:
        """A part of the program; `expected` is how many gradients DDP will average after it."""
        if not self._is_on:
            return NOBODY
        try:
            with self._lock:
                number = self._ring.name("phase", name, name)
                site = self._site()
                mark = self._ring.add(op, site=site, phase=number, thread=self._thread(), size_bytes=expected)
                self._phases[mark], self._ring.phase, self._phase_site = self._ring.phase, number, site
                return mark
        except Exception as error:
            self.give_up(error)
            return NOBODY

    def end_phase(self, mark: int) -> None:
        if mark != NOBODY and self._is_on:
            self._ring.phase = self._phases.pop(mark, 0)
            self._ring.completed(mark)

    def sends_signal(self, process: int, number: int) -> None:
        if self._is_on:
            with self._lock:
                self._ring.add(ring_format.OP["signal"], site=self._site(), peer=process, tag=number)

    def leaves(self, code: int) -> None:
        """By os._exit, which nobody else hears of."""
        if self._is_on:
            with self._lock:
                self._ring.add(ring_format.OP["exit"], site=self._site(), tag=code)

    # What the program says of itself.

    def note_end(self, code: int, error: BaseException | None) -> None:
        """The program is over, with an exit code or an error."""
        if self._is_on:
            try:
                self._note_end(code, error)
            except Exception as failed:
                self.give_up(failed)

    def _note_end(self, code: int, error: BaseException | None) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        self._device.settle()
        if error is None:
            self._ring.add(ring_format.OP["exit"], tag=code)
        elif isinstance(error, SystemExit):
            self._ring.add(ring_format.OP["exit"], tag=code, site=self._site_of(error))
        else:
            told = {"error": type(error).__name__, "text": str(error)[:_MOST_TEXT]}
            kind = self._ring.name("signature", repr(type(error)), told)
            self._ring.add(ring_format.OP["exception"], site=self._site_of(error), signature=kind)
        self.turn_off()  # what follows is ours: the end of the process

    def _site_of(self, error: BaseException) -> int:
        """Where it was raised, as the user sees it."""
        places = sites.raised(error.__traceback__)
        return self._number(places) if places else 0

    # Names.

    def give_up(self, error: Exception) -> None:
        """It never is the program's fault, nor its end."""
        self.turn_off()
        say(f"recording stops here ({type(error).__name__}: {error}); the program goes on")

    def _group(self, group: Any) -> _Group:
        if group is STRANGE:
            return self._named(ring_format.STRANGE_GROUP, []), [], None
        if isinstance(group, tuple):  # new_group, where only the members call it
            return self._named("new group", group), list(group), None
        if group is None:  # init_process_group, new_group: of all ranks
            ranks = list(range(self._world_size))
            return self._named("world", ranks), ranks, None
        self._sample()
        ranks, key = members(group), id(group)
        end = weakref.ref(group, lambda _: self._groups.pop(key, None))
        self._groups[key] = found = self._named(str(group.group_name), ranks), ranks, end
        return found

    def _named(self, group: str, ranks: Sequence[int]) -> int:
        return self._ring.name("group", (group, tuple(ranks)), {"name": group, "ranks": _spans(ranks)})

    def _sample(self) -> None:
        """Not before there is a group: until then, a program that forks may still be one without threads."""
        if self._sampler is None:
            self._sampler = Sampler(self._ring, self._lock, self._main, self._number, self._is_in_op, self._device)
            self._sampler.start()

    def _is_in_op(self) -> bool:
        return bool(self._waited_for) or self._ring.is_in_op()

    def _site(self) -> int:
        places = _chain(_getframe(2))
        return self._sites.get(places) or self._new_site(places)

    def _new_site(self, places: sites.Places) -> int:
        if not sites.is_users(places) and _get_ident() != self._main:
            # Autograd's own thread, on a GPU: what it does was asked for by the main one.
            places = _chain(sys._current_frames().get(self._main)) or places
        return self._number(places)

    def _number(self, places: sites.Places) -> int:
        """A site's number: the same for all instructions of a line."""
        number = self._sites.get(places)
        if number is None:
            told = sites.describe(places)
            number = self._sites[places] = self._ring.name("site", tuple(told), told)
        return number

    def _signature(self, key: Any, seen: Seen) -> int:
        told = [describe(tensor) for tensor in seen.tensors]
        return self._ring.name(
            "signature",
            key,
            {
                "shapes": [list(each.shape) for each in told],
                "dtypes": [str(each.dtype).removeprefix("torch.") for each in told],
                "device": told[0].device if told else "",
                "splits": seen.splits,
                **({"objects": inside.objects} if inside.objects else {}),
            },
        )

    def _thread(self) -> int:
        ident = _get_ident()
        if ident == self._main:
            return 0
        return self._threads.setdefault(ident, len(self._threads) + 1)


def _describe_all(seen: Seen) -> tuple[int, bool, Any]:
    """How many bytes an op is about, whether they are on a GPU, and the key of its signature."""
    if len(seen.tensors) != 1 and set(map(type, seen.tensors)) <= _PLAIN:
        try:
            return _describe_plain(seen)
        except RuntimeError:  # one is sparse or nested
            pass
    told = [describe(tensor) for tensor in seen.tensors]
    what: tuple[Any, ...] = (tuple((each.shape, each.dtype) for each in told), None)
    if len(told) == 1:
        what = (told[0].shape, told[0].dtype)
    return sum(each.size_bytes for each in told), told[0].device == "cuda", (*what, seen.splits, inside.objects)


def _describe_plain(seen: Seen) -> tuple[int, bool, Any]:
    """The same in less time: DDP sends all buffers of a module at once."""
    tensors = seen.tensors
    what = tuple([(tensor.shape, tensor.dtype) for tensor in tensors])
    size_bytes = sum([tensor.nbytes for tensor in tensors])
    return size_bytes, bool(tensors) and tensors[0].is_cuda, (what, None, seen.splits, inside.objects)


def _spans(ranks: Sequence[int]) -> list[int | list[int]]:
    """Ranks that follow each other as [first, last]: a name must not grow with the world."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return [span if span[0] < span[1] else span[0] for span in spans]


_recorder: Recorder | None = None


def prepare() -> None:
    """What is done once for all ranks, before they are forked."""
    hooks.put_up()
    if pen is not None:
        importlib.import_module("rollcall.record.cpp.recorder")


def begin(folder: Path, rank: int, world_size: int, attempt: int) -> Recorder:
    """Record this rank, in the folder of its run."""
    global _recorder
    path = folder / "rings" / f"attempt-{attempt}" / f"rank-{rank}.ring"
    host = socket.gethostname()
    if pen is None:
        ring = Ring(path, rank=rank, world_size=world_size, attempt=attempt, host=host)
        _recorder = Recorder(ring, world_size)
    else:
        from rollcall.record.cpp.recorder import SwiftRecorder
        from rollcall.record.cpp.ring import SwiftRing

        swift = SwiftRing(path, rank=rank, world_size=world_size, attempt=attempt, host=host)
        _recorder = SwiftRecorder(swift, world_size)
    stacks.answer(folder / "rings" / f"attempt-{attempt}" / f"rank-{rank}.stacks")
    _recorder.begin()
    return _recorder


def current() -> Recorder | None:
    return _recorder
