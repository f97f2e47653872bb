"""The recorder in Python: turns what the hooks see into records of a ring. cpp/recorder.py replaces what is called most
often by C++. Errors are the guard's business (hooks/patching.py): nothing is caught here."""

import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from rollcall.compat.torch_groups import group_named, name_of, ranks_of
from rollcall.record import hooks, ring_format, signatures, sites
from rollcall.record.cuda_timing import ARRIVED, COMPLETED, WAITED, DeviceClock
from rollcall.record.hooks import reducer, sink
from rollcall.record.hooks.arguments import reduce_op
from rollcall.record.hooks.patching import guarded, stop
from rollcall.record.hooks.sink import NO_RECORD, NON_MEMBER, PHASE, CallArgs, this_thread
from rollcall.record.on_request.requests import Requests
from rollcall.record.ring import Ring
from rollcall.record.sampler import Sampler, describe_error
from rollcall.record.sources import SourceCopies
from rollcall.record.tensors import version

# Looked up once: they are used for every op.
_getframe, _get_ident, _user_frames = sys._getframe, threading.get_ident, sites.user_frames
_Tensor, _ASYNC, _BUCKET = torch.Tensor, ring_format.ASYNC, ring_format.BUCKET
_UNWATCHED = (0, None, False)
# Its number, its ranks, and weak references: recording does not keep a destroyed group and its threads alive.
Group = tuple[int, list[int], tuple[weakref.ref[Any], ...]]


def _version(kept: Any) -> int:
    """Of the tensor of an op; 0 if there is none, or if it is gone."""
    tensor = kept() if type(kept) is weakref.ref else kept
    return 0 if tensor is None else version(tensor)


class _InOp(threading.local):
    """Whether this thread is in an op that is recorded already."""

    value = False


class PythonRecorder:
    """The sink of a rank. A mark is the offset of a record in the ring."""

    _clock_class = DeviceClock
    _forget: tuple[Callable[[int, object], object], ...] = ()  # called with the id of a group that is gone

    def __init__(self, ring: Ring, world_size: int, sources: SourceCopies | None = None) -> None:
        self._ring, self._world_size, self._sources = ring, world_size, sources
        self._write, self._completed = ring.write, ring.completed  # looked up once, since they are used for every op
        self._device = self._clock_class(ring)
        self._sampler: Sampler | None = None
        self._lock = threading.RLock()  # a signal handler may communicate, too
        self._groups: dict[int, Group] = {}  # by id
        self._sites: dict[sites.Places, int] = {}
        self._signatures = ring.numbers("signature")
        # By mark: its flags, the tensor whose version is recorded (or a weak reference to it), and whether the op is on
        # a GPU.
        self._watched: dict[int, tuple[int, Any, bool]] = {}
        self._waited_for: set[int] = set()  # async ops that a thread waits for
        self._threads: dict[int, int] = {}
        self._main = threading.main_thread().ident or 0
        self._in_op = _InOp()
        self._phase_site = 0
        self._phases: dict[int, int] = {}  # by mark: the phase around it
        self._steps: dict[int, int] = {}  # by id of an optimizer: the mark of its step
        self._gradients: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by DDP module: how many
        self._count_gradients: Callable[[Any], int] = lambda ddp: 0
        self._is_on = True
        self._is_rehearsed = False

    def rehearse(self) -> None:
        """The device is pretended: its ops complete when they are queued, and the rank is not sampled."""
        self._is_rehearsed = True

    def count_records(self) -> int:
        return self._ring.count

    def begin(self) -> None:
        hooks.install()
        sink.use(self)
        os.register_at_fork(after_in_child=self._leave)  # a forked worker of a DataLoader is not its rank

    def _leave(self) -> None:
        """Runs in a forked child. Its hooks must not call this recorder: a thread of the parent may have held its
        lock."""
        self.turn_off()
        if sink.current is self:
            sink.use(sink.OFF)

    def turn_off(self, why: str = "") -> None:
        """`why`: an error, if there is one; it goes into the ring."""
        self._is_on = False
        if why:
            self._ring.note_stop(why)
        if self._sampler is not None:
            self._sampler.end()

    # Ops.

    def enter(self, op: int, group: Any, call: CallArgs) -> int:
        if not self._is_on:
            return NO_RECORD
        with self._lock:
            found = self._groups.get(id(group)) or self._group(group)
            if found is None:
                return NO_RECORD
            number, ranks, _ = found
            tensors, peer, tag, reduce, splits, flags = call
            if peer >= 0 and peer < len(ranks):
                peer = ranks[peer]
            first: Any = tensors[0] if tensors else None
            key: Any = None
            if type(first) is _Tensor and len(tensors) == 1:  # the usual case
                try:
                    size_bytes, is_cuda = first.nbytes, first.is_cuda
                    key = (first.shape, first.dtype, splits, this_thread.object_count)
                except RuntimeError:  # it is sparse or nested
                    pass
            if key is None:
                size_bytes, is_cuda, key = signatures.measure(call)
            is_watched = first is not None and (flags & _ASYNC or is_cuda)
            # gloo copies the results of a coalesced op into its tensors, in a thread of its own: these are writes, too.
            kept = first if is_watched and len(tensors) == 1 else None
            mark = self._write(
                op,
                flags,
                number,
                # A bucket has the site where backward was called.
                self._phase_site if flags & _BUCKET else self._site(),
                self._signatures.get(key) or self._signature(key, call),
                peer,
                tag,
                0 if _get_ident() == self._main else self.name_thread(),
                reduce,
                0 if kept is None else version(kept),
                size_bytes,
            )
            if is_watched:
                # A program may never use the result of a functional collective: its input is not kept for that.
                is_weak = kept is not None and flags & ring_format.WAITED
                self._watched[mark] = (flags, weakref.ref(kept) if is_weak else kept, is_cuda)
                if is_cuda and (not flags & _BUCKET or reducer.is_timed(splits[1])):
                    self._note_on_device((mark,), ARRIVED)
            return mark

    def all_reduce_options(self, options: Any) -> tuple[int, int]:
        """The reduce op and the flags of an all_reduce."""
        return reduce_op(options), _ASYNC if options.asyncOp else 0

    def set_object_count(self, count: int) -> None:
        """This thread is in a collective of objects, and `this_thread` notes that already."""

    def issued(self, mark: int) -> None:
        if mark != NO_RECORD and self._is_on:
            _, tensor, _ = self._watched.get(mark, _UNWATCHED)
            self._ring.issued(mark, _version(tensor))

    def waiting(self, mark: int) -> None:
        if mark != NO_RECORD and self._is_on:
            flags, tensor, is_cuda = self._watched.get(mark, _UNWATCHED)
            self._waited_for.add(mark)
            self._ring.waiting(mark, flags | ring_format.WAITED, _version(tensor))
            if is_cuda and flags & _ASYNC:
                self._note_on_device((mark,), WAITED)

    def completed(self, mark: int, *others: int) -> None:
        """Note the same time for all of them."""
        if mark != NO_RECORD and self._is_on:
            # The usual case: a program whose ops are not async.
            if not (others or self._watched or self._waited_for):
                self._completed(mark)
                return
            self._waited_for.discard(mark)
            watched = self._watched.pop(mark, None) if self._watched else None
            if watched is not None and watched[2]:
                self._note_on_device((mark, *others), COMPLETED)
            else:
                self._completed(mark)
                for other in others:
                    self._completed(other)
            for other in others:
                self._waited_for.discard(other)
                self._watched.pop(other, None)

    def polled(self, *marks: int) -> None:
        """The program has seen that these are complete, without waiting for them."""
        for mark in marks:
            self.waiting(mark)
            self._waited_for.discard(mark)
            self._watched.pop(mark, None)
            if self._is_on:
                self._completed(mark)

    def is_on_device(self, mark: int) -> bool:
        """Whether the op runs on a GPU, which the host does not wait for."""
        return self._watched.get(mark, _UNWATCHED)[2]

    def received_from(self, mark: int, group: Any, source: int) -> None:
        """Notes the sender of a receive from any rank: `source` is a rank of the group."""
        if self._is_on:
            with self._lock:
                found = self._groups.get(id(group)) or self._group(group)
                if found is not None:
                    self._ring.received_from(mark, found[1][source])

    def _note_on_device(self, marks: tuple[int, ...], moment: int) -> None:
        """The host has queued these ops; the GPU may reach this moment of them later."""
        if not self._is_rehearsed:
            self._device.note(marks, moment)
        elif moment == COMPLETED:
            for mark in marks:
                self._completed(mark)

    def failed(self, mark: int) -> None:
        if mark != NO_RECORD and self._is_on:
            self._waited_for.discard(mark)
            flags, *_ = self._watched.pop(mark, _UNWATCHED)
            self._ring.failed(mark, flags)

    def dropped(self, mark: int) -> None:
        """The program deleted the handle of an op without waiting for it: its tensor is not kept any longer."""
        self._watched.pop(mark, None)

    def on_drop(self, mark: int) -> Callable[[object], object]:
        """The same, as the callback of a weak reference to the handle: a function of C."""
        return partial(self._watched.pop, mark)

    def set_in_op(self, is_in_op: bool) -> None:
        self._in_op.value = is_in_op

    def is_in_op(self) -> bool:
        return self._in_op.value

    # Phases, and DDP.

    def begin_phase(self, name: str, op: int = PHASE, expected: int = 0) -> int:
        """A part of the program; `expected` is how many gradients DDP will average after it."""
        if not self._is_on:
            return NO_RECORD
        with self._lock:
            number, site = self.name_phase(name), self._site()
            mark = self._ring.write(op, 0, 0, site, 0, -1, 0, self.name_thread(), 0, 0, expected, number)
            self._phases[mark], self._ring.phase, self._phase_site = self._ring.phase, number, site
            return mark

    def end_phase(self, mark: int) -> None:
        if mark != NO_RECORD and self._is_on:
            self._ring.phase = self._phases.pop(mark, 0)
            self._completed(mark)

    def begin_forward(self, ddp: Any) -> int:
        return self.begin_phase("forward", ring_format.OP["ddp_forward"], self._expected_gradients(ddp))

    def _expected_gradients(self, ddp: Any) -> int:
        """How many gradients the reducer will average after this forward: 0 where it will not, or where a communication
        hook does."""
        if not (ddp.require_backward_grad_sync and torch.is_grad_enabled()) or ddp._comm_hooks:
            return 0
        count = self._gradients.get(ddp)
        if count is None:
            count = self._gradients[ddp] = self._count_gradients(ddp)
        return count

    def begin_step(self, optimizer: Any) -> None:
        self._steps[id(optimizer)] = self.begin_phase("step")

    def end_step(self, optimizer: Any) -> None:
        self.end_phase(self._steps.pop(id(optimizer), NO_RECORD))

    def watch_reducer(self, group: str, count_gradients: Callable[[Any], int]) -> None:
        self._count_gradients = count_gradients
        reducer.watch(group_named(group), self._is_rehearsed)

    def world_made(self) -> None:
        """A rank may stand still before its first op, so the sampler does not wait for that."""
        if self._is_on:
            with self._lock:
                self._start_sampler()

    def fail_buckets(self) -> None:
        reducer.fail()

    # The end of the program.

    def signal_sent(self, process: int, number: int) -> None:
        if self._is_on:
            with self._lock:
                self._ring.add(ring_format.OP["signal"], site=self._site(), peer=process, tag=number)

    def exiting(self, code: int) -> None:
        """By os._exit, after which no other code of the process runs."""
        if self._is_on:
            with self._lock:
                self._ring.add(ring_format.OP["exit"], site=self._site(), tag=code)

    def note_end(self, code: int, error: BaseException | None) -> None:
        """The program has ended, with an exit code or an error."""
        if self._is_on:
            guarded("the end of the program", self._note_end, code, error)

    def _note_end(self, code: int, error: BaseException | None) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        self._device.settle()
        if error is None:
            self._ring.add(ring_format.OP["exit"], tag=code)
        elif isinstance(error, SystemExit):
            self._ring.add(ring_format.OP["exit"], tag=code, site=self._site_of(error))
        else:
            kind = self._ring.name("signature", repr(type(error)), describe_error(error))
            self._ring.add(ring_format.OP["exception"], site=self._site_of(error), signature=kind)
        self.turn_off()  # what follows is our own: the end of the process

    def _site_of(self, error: BaseException) -> int:
        """Where it was raised, as the user sees it."""
        places = sites.raised(error.__traceback__)
        return self._site_number(places) if places else 0

    def stop_after(self, error: BaseException) -> None:
        """An error in C++, where no hook of Python is around it."""
        stop("the C++ recorder", error)

    # Numbers of names.

    def _group(self, group: Any) -> Group | None:
        """None where nothing tells which group of other ranks it is: what it does is not recorded."""
        if group is NON_MEMBER:
            return self._group_number(ring_format.NON_MEMBER_GROUP, []), [], ()
        if isinstance(group, tuple):  # new_group, where only the members call it
            return self._group_number("new group", group), list(group), ()
        if group is None:  # init_process_group, new_group: all ranks
            ranks = list(range(self._world_size))
            return self._group_number("world", ranks), ranks, ()
        name = name_of(group)
        if name is None:
            return None
        self._start_sampler()
        ranks, key = ranks_of(group), id(group)
        # Functions of C, as on_drop: at the end of the interpreter the names of this module are gone, too.
        ends = tuple(weakref.ref(group, partial(forget, key)) for forget in (self._groups.pop, *self._forget))
        self._groups[key] = found = self._group_number(name, ranks), ranks, ends
        return found

    def _group_number(self, name: str, ranks: Sequence[int]) -> int:
        return self._ring.name("group", (name, tuple(ranks)), {"name": name, "ranks": _spans(ranks)})

    def _start_sampler(self) -> None:
        """Not before there is a group: until then, a program may rely on having no threads when it forks."""
        if self._sampler is None and not self._is_rehearsed:
            self._sampler = Sampler(
                self._ring,
                self._lock,
                self._main,
                self._site_number,
                self._is_blocked,
                self._device,
                Requests(self._ring.path),
            )
            self._sampler.start()

    def _is_blocked(self) -> bool:
        return bool(self._waited_for) or self._ring.is_blocked()

    def _site(self) -> int:
        places = _user_frames(_getframe(2))
        return self._sites.get(places) or self.name_site(places)

    def name_site(self, places: sites.Places) -> int:
        if not sites.is_users(places) and _get_ident() != self._main:
            # Autograd's own thread, on a GPU: what it does was started by the main thread.
            places = _user_frames(sys._current_frames().get(self._main)) or places
        return self._site_number(places)

    def _site_number(self, places: sites.Places) -> int:
        """The same for all instructions of a line."""
        number = self._sites.get(places)
        if number is None:
            frames = sites.describe(places)
            if self._sources is not None:
                self._sources.keep(frames)
            if len(self._sites) >= sites.MOST_CODES:
                self._sites.clear()  # the ring knows their numbers
            number = self._sites[places] = self._ring.name("site", tuple(frames), frames)
        return number

    def name_phase(self, name: str) -> int:
        return self._ring.name("phase", name, name)

    def _signature(self, key: Any, call: CallArgs) -> int:
        return self._ring.name("signature", key, signatures.value(call))

    def name_thread(self) -> int:
        ident = _get_ident()
        if ident == self._main:
            return 0
        return self._threads.setdefault(ident, len(self._threads) + 1)


def _spans(ranks: Sequence[int]) -> list[int | list[int]]:
    """Consecutive ranks as [first, last]: the size of a name does not grow with the world."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return [span if span[0] < span[1] else span[0] for span in spans]
