"""The only file that touches torch's internals.

Methods of ProcessGroup are replaced on the class: that sees every op that Python asks for, on every backend, with all
its options, for a few microseconds. What C++ starts by itself (DDP's buckets, functional collectives) passes it by; of
DDP we see the making of the module and every forward.
"""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from rollcall.record.layout import OP, REDUCE_OPS

_REDUCE = {name: number for number, name in enumerate(REDUCE_OPS)}
_inside = threading.local()  # how many objects this thread is passing around


class Seen(NamedTuple):  # made for every op: a dataclass takes three times as long
    """What one op is about. `peer` is a rank of the group: of a send, a receive, or the root."""

    tensors: tuple[torch.Tensor, ...] = ()
    peer: int = -1
    tag: int = 0
    reduce: int = 0
    splits: tuple[Any, ...] = ()
    is_async: bool = True


class Listener(Protocol):
    """Who is told. `enter` returns a mark that the later calls name."""

    def enter(self, op: int, group: Any, seen: Seen) -> int: ...

    def issued(self, mark: int) -> None: ...

    def waiting(self, mark: int) -> None: ...

    def completed(self, mark: int) -> None: ...

    def failed(self, mark: int) -> None: ...

    def dropped(self, mark: int) -> None: ...


# Per method of ProcessGroup: the op, and how its arguments are read.


def _flat(value: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    return tuple(tensor for each in value for tensor in _flat(each))


def _option(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> Any:
    return kwargs.get("opts") if "opts" in kwargs else args[place] if len(args) > place else None


def _reduce_op(opts: Any) -> int:
    kind = opts.reduceOp.op  # ReduceOp wraps its kind
    known = _reduce_kinds.get(kind)
    if known is None:
        known = _reduce_kinds[kind] = _REDUCE.get(kind.name, 0)
    return known


_reduce_kinds: dict[Any, int] = {}


def _is_async(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))


def _all_reduce(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    opts = args[1] if len(args) > 1 else kwargs.get("opts")
    if opts is None or not hasattr(opts, "asyncOp"):
        return Seen(_flat(args[0]))
    return Seen(_flat(args[0]), -1, 0, _reduce_op(opts), (), opts.asyncOp)


def _collective(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    opts = _option(args, kwargs, 1)
    root = getattr(opts, "rootRank", -1)
    return Seen(_flat(args[0]), root, 0, _reduce_op(opts) if hasattr(opts, "reduceOp") else 0, (), _is_async(opts))


def _gathering(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """Outputs, inputs: both count; their number, too."""
    opts = _option(args, kwargs, 2)
    outputs, inputs = _flat(args[0]), _flat(args[1])
    reduce = _reduce_op(opts) if hasattr(opts, "reduceOp") else 0
    return Seen(inputs or outputs, getattr(opts, "rootRank", -1), 0, reduce, (_shapes(outputs),), _is_async(opts))


def _rooted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """gather and scatter: only the root has both sides, so only what each has alike is compared."""
    opts = _option(args, kwargs, 2)
    outputs, inputs = _flat(args[0]), _flat(args[1])
    own = inputs if not outputs else outputs if not inputs else min(inputs, outputs, key=len)
    return Seen(own[:1], getattr(opts, "rootRank", -1), 0, 0, (), _is_async(opts))


def _exchanging(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    output, given = args[0], args[1]
    if isinstance(output, torch.Tensor):
        sizes = (list(args[2]) if len(args) > 2 else [], list(args[3]) if len(args) > 3 else [])
        return Seen((given,), splits=("single", *map(tuple, sizes), tuple(output.shape)), is_async=_is_async(args[-1]))
    return Seen(_flat(given), splits=("list", _shapes(given), _shapes(output)), is_async=_is_async(args[-1]))


def _barrier(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    return Seen(is_async=_is_async(_option(args, kwargs, 0)))


def _sending(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    return Seen(_flat(args[0]), args[1], args[2] if len(args) > 2 else kwargs.get("tag", 0))


def _receiving_from_any(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    return Seen(_flat(args[0]), -1, args[1])


def _shapes(tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)


_UNREADABLE = Seen()

_METHODS: dict[str, tuple[str, Callable[[tuple[Any, ...], dict[str, Any]], Seen]]] = {
    "allreduce": ("all_reduce", _all_reduce),
    "allreduce_coalesced": ("all_reduce", _collective),
    "broadcast": ("broadcast", _collective),
    "reduce": ("reduce", _collective),
    "allgather": ("all_gather", _gathering),
    "allgather_coalesced": ("all_gather", _gathering),
    "_allgather_base": ("all_gather", _gathering),
    "all_gather_single": ("all_gather", _gathering),
    "all_gather_single_coalesced": ("all_gather", _gathering),
    "allgather_into_tensor_coalesced": ("all_gather", _gathering),
    "gather": ("gather", _rooted),
    "scatter": ("scatter", _rooted),
    "reduce_scatter": ("reduce_scatter", _gathering),
    "_reduce_scatter_base": ("reduce_scatter", _gathering),
    "reduce_scatter_single": ("reduce_scatter", _gathering),
    "reduce_scatter_single_coalesced": ("reduce_scatter", _gathering),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _gathering),
    "alltoall": ("all_to_all", _exchanging),
    "alltoall_base": ("all_to_all", _exchanging),
    "all_to_all_single": ("all_to_all", _exchanging),
    "barrier": ("barrier", _barrier),
    "monitored_barrier": ("barrier", lambda args, kwargs: Seen(is_async=False)),
    "send": ("send", _sending),
    "recv": ("recv", _sending),
    "recv_anysource": ("recv", _receiving_from_any),
}


# Collectives of objects, and which argument is the list whose length must fit.
_OBJECTS = {"all_gather_object": 0, "broadcast_object_list": 0, "scatter_object_list": 1, "gather_object": 1}


def _counting_objects(place: int, original: Any) -> Any:
    """Let the ops underneath know how many objects the caller's list has."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else None
        _inside.objects = len(given) if isinstance(given, list) else 0
        try:
            return original(*args, **kwargs)
        finally:
            _inside.objects = 0

    return functools.wraps(original)(counted)


STRANGE = object()  # in place of a group that this rank is not in
_WORLD = None  # in place of a group: all ranks


class Hooks:
    """Replaces what is to be heard, for one listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._marks: dict[int, tuple[Any, int]] = {}  # by id: works that nobody has waited for yet

    def put_up(self) -> None:
        for name, (op, read) in _METHODS.items():
            if hasattr(dist.ProcessGroup, name):  # not every torch has all
                self._replace(dist.ProcessGroup, name, self._op(OP[op], read))
        self._replace(dist.Work, "wait", self._wait)
        for module in (dist, distributed_c10d):
            for name, place in _OBJECTS.items():
                self._replace(module, name, functools.partial(_counting_objects, place))
            self._replace(module, "new_group", self._whole("new_group"))
            self._replace(module, "init_process_group", self._whole("init"))
        self._replace(distributed_c10d, "_warn_not_in_group", self._strange)
        self._replace(DistributedDataParallel, "__init__", self._wrapped)
        self._replace(DistributedDataParallel, "forward", self._forward)

    def members(self, group: Any) -> list[int]:
        """The ranks of a group, in its own order."""
        found = distributed_c10d._world.pg_group_ranks.get(group)
        return sorted(found, key=found.__getitem__) if found else list(range(group.size()))

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        setattr(owner, name, make(getattr(owner, name)))

    @contextlib.contextmanager
    def _during(self, op: str, splits: tuple[Any, ...]) -> Iterator[None]:
        """Something that all ranks do, from its beginning to its end."""
        mark = self._listener.enter(OP[op], _WORLD, Seen(splits=splits, is_async=False))
        try:
            yield
        except BaseException:
            self._listener.failed(mark)
            raise
        self._listener.completed(mark)

    def _op(self, op: int, read: Callable[[tuple[Any, ...], dict[str, Any]], Seen]) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def recorded(group: Any, *args: Any, **kwargs: Any) -> Any:
                listener = self._listener
                try:
                    seen = read(args, kwargs)
                except Exception:  # arguments that nobody has foreseen: torch will judge them, not we
                    seen = _UNREADABLE
                mark = listener.enter(op, group, seen)
                try:
                    work = original(group, *args, **kwargs)
                except BaseException:
                    listener.failed(mark)
                    raise
                listener.issued(mark)
                if work is None:
                    listener.completed(mark)
                elif seen.is_async:
                    self._keep(work, mark)
                else:  # torch waits for it at once
                    self._marks[id(work)] = (work, mark)
                return work

            return functools.wraps(original)(recorded)

        return make

    def _keep(self, work: Any, mark: int) -> None:
        """Weakly: what nobody waits for, goes, as it would without us."""
        key = id(work)

        def drop(_: Any) -> None:
            self._marks.pop(key, None)
            self._listener.dropped(mark)

        self._marks[key] = (weakref.ref(work, drop), mark)

    def _wait(self, original: Any) -> Any:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            _, mark = self._marks.pop(id(work), (None, -1))
            if mark < 0:
                return original(work, *args, **kwargs)
            self._listener.waiting(mark)
            try:
                result = original(work, *args, **kwargs)
            except BaseException:
                self._listener.failed(mark)
                raise
            self._listener.completed(mark)
            return result

        return functools.wraps(original)(wait)

    def _strange(self, original: Any) -> Any:
        """torch's own word for a call on a group that this rank is not in."""

        def warn(name: str) -> Any:
            op = OP.get(
                name.removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single"), OP["barrier"]
            )
            self._listener.completed(self._listener.enter(op, STRANGE, Seen(is_async=False)))
            return original(name)

        return functools.wraps(original)(warn)

    def _wrapped(self, original: Any) -> Any:
        """A module becomes a DDP module: all ranks must have the same parameters in the same order."""

        def init(ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            parameters = tuple(
                (n, tuple(p.shape), str(p.dtype)) for n, p in module.named_parameters() if p.requires_grad
            )
            with self._during("ddp", parameters):
                original(ddp, module, *args, **kwargs)

        return functools.wraps(original)(init)

    def _forward(self, original: Any) -> Any:
        def forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
            self._listener.completed(self._listener.enter(OP["ddp_forward"], _WORLD, Seen(is_async=False)))
            return original(ddp, *args, **kwargs)

        return functools.wraps(original)(forward)

    def _whole(self, op: str) -> Callable[[Any], Any]:
        """A function of torch.distributed that all ranks call, from its beginning to its end."""

        def make(original: Any) -> Any:
            def recorded(*args: Any, **kwargs: Any) -> Any:
                ranks = args[0] if args else kwargs.get("ranks")
                splits = (tuple(ranks),) if op == "new_group" and ranks is not None else ()
                with self._during(op, splits):
                    return original(*args, **kwargs)

            return functools.wraps(original)(recorded)

        return make


def objects() -> int:
    """The length of the list of objects that this thread is passing around, if it is."""
    return getattr(_inside, "objects", 0)


def raw_version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to, as autograd counts it; 0 where it does not."""
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have no version
        return 0
