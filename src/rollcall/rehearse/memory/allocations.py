"""Follows what lives on the pretended device of one rank: storages, by category, and the moment of the peak.

Each storage gets a block of a model of torch's allocator when it is made, and gives it back when torch drops it.
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rollcall.rehearse.memory import workspaces
from rollcall.rehearse.memory.allocator import Allocator, Block, Log
from rollcall.rehearse.memory.use import CATEGORIES, GpuContents, MemoryUse
from rollcall.rehearse.rank import device
from rollcall.rehearse.rank.values import users_place

_PARAMETERS, _GRADIENTS, _OPTIMIZER, _ACTIVATIONS, _OTHER = range(len(CATEGORIES))
_SET_UP, _FORWARD, _BACKWARD, _AFTER_BACKWARD, _STEP = "set-up", "forward", "backward", "after backward", "optimizer"
# What is made in a phase, as long as nothing better is known of it. Everything that backward makes is a gradient, of a
# parameter or of an activation, except what it computes again.
_MADE_IN = {_SET_UP: _OTHER, _FORWARD: _ACTIVATIONS, _AFTER_BACKWARD: _OTHER, _STEP: _OPTIMIZER}
_MOST_POINTS = 512


class _Live(weakref.ref[Any]):
    """A storage that lives; and what it takes."""

    __slots__ = ("block", "category", "device", "kept_by", "key")
    block: Block | None  # None: it has no bytes
    category: int
    device: int
    kept_by: int  # the backward in which DDP reduced it; 0: none did
    key: int


class Phases:
    """What the program does at the moment."""

    def __init__(self) -> None:
        self._phase = _SET_UP
        self._is_in_step = False

    @property
    def now(self) -> str:
        if torch._C._current_graph_task_id() != -1:
            self._phase = _AFTER_BACKWARD
            return _BACKWARD
        return _STEP if self._is_in_step else self._phase

    def enter_forward(self) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._phase = _FORWARD

    def enter_step(self) -> None:
        self._is_in_step = True

    def leave_step(self) -> None:
        self._is_in_step = False


class DeviceMemory:
    """The memory of one GPU."""

    def __init__(self, limit_bytes: int, log: Log | None = None) -> None:
        self.allocator, self._log = Allocator(limit_bytes), log
        self.totals = [0] * len(CATEGORIES)
        self.peak = self.overflow = GpuContents("", "", tuple(self.totals))
        self.peak_bytes = 0  # of the whole run: a program may reset the peak of the allocator
        self.least_peak_bytes = 0  # the same without what only nccl keeps
        self._kept_bytes = 0
        self.reserved_bytes = 0
        self.timeline = PeakSamples()
        self._is_at_peak = False  # the peak's sizes are taken when it ends: what was made last may get its category yet
        self._place = self._phase = ""

    def allocate(self, size_bytes: int, category: int, phase: str) -> Block:
        had_overflowed = self.allocator.has_overflowed
        stream = device.current_stream_number()
        block = self.allocator.allocate(size_bytes, stream)
        if self._log is not None:
            self._log.allocate(size_bytes, stream, block)
        self.totals[category] += block.size_bytes
        self.least_peak_bytes = max(self.least_peak_bytes, self.allocator.allocated_bytes - self._kept_bytes)
        if self.allocator.allocated_bytes > self.peak_bytes:
            self.peak_bytes = self.allocator.allocated_bytes
            self._is_at_peak, self._place, self._phase = True, users_place(), phase
        if self.allocator.has_overflowed and not had_overflowed:
            self.overflow = GpuContents(users_place(), phase, tuple(self.totals))
        self.reserved_bytes = max(self.reserved_bytes, self.allocator.reserved_bytes)
        self.timeline.add(phase, self.allocator.allocated_bytes, self.totals)
        return block

    def free(self, block: Block, category: int) -> None:
        self.settle()
        self.totals[category] -= block.size_bytes
        if self._log is not None:
            self._log.free(block)
        self.allocator.free(block)

    def note_kept(self, size_bytes: int) -> None:
        """Memory that only nccl keeps, because the program has dropped it, has grown or shrunk by this."""
        self._kept_bytes += size_bytes

    def settle(self) -> None:
        if self._is_at_peak:
            self.peak, self._is_at_peak = GpuContents(self._place, self._phase, tuple(self.totals)), False

    def use(self) -> MemoryUse:
        self.settle()
        overflow = self.overflow if self.overflow.place else None
        return MemoryUse(
            self.peak, self.least_peak_bytes, self.peak_bytes, self.reserved_bytes, overflow, self.timeline.points()
        )


class PeakSamples:
    """The highest moment of each stretch of allocations. Stretches grow, so that there are never many."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int, str, tuple[int, ...]]] = []
        self._count, self._stretch = 0, 1

    def add(self, phase: str, total_bytes: int, sizes: list[int]) -> None:
        place = self._count // self._stretch
        self._count += 1
        if place == len(self._points):
            self._points.append((total_bytes, self._count, phase, tuple(sizes)))
        elif total_bytes > self._points[place][0]:
            self._points[place] = total_bytes, self._count, phase, tuple(sizes)
        if len(self._points) > _MOST_POINTS:
            self._points = [max(self._points[at : at + 2]) for at in range(0, len(self._points), 2)]
            self._stretch *= 2

    def points(self) -> tuple[tuple[int, str, tuple[int, ...]], ...]:
        return tuple((count, phase, sizes) for _, count, phase, sizes in self._points)


class Allocations:
    """The allocations of one rank, on all GPUs of its host."""

    def __init__(self, limit_bytes: int, capability: tuple[int, int], with_log: bool = False) -> None:
        self._limit_bytes, self._capability = limit_bytes, capability
        self.log = Log() if with_log else None  # of the first device
        self._phases = Phases()
        self._live: dict[int, _Live] = {}
        self._devices: dict[int, DeviceMemory] = {}
        self._handles: set[tuple[int, bool, int]] = set()
        self._known_modules: set[int] = set()
        self._kept: list[tuple[_Live, Block]] = []  # dropped by the program, and kept by nccl
        self._last_reducing = 0  # the last backward in which DDP reduced something
        self._is_making_gradients = False

    def install(self) -> None:
        register_module_forward_pre_hook(lambda module, _: self._enter_module(module))
        register_optimizer_step_pre_hook(lambda *_: self._phases.enter_step())
        register_optimizer_step_post_hook(lambda optimizer, *_: self._leave_step(optimizer))
        _follow_resizes(self)
        for owner, name in ((dist.Reducer, "_rebuild_buckets"), (DistributedDataParallel, "_ddp_init_helper")):
            setattr(owner, name, self._making_gradients(getattr(owner, name)))

    def on(self, index: int) -> DeviceMemory:
        if index not in self._devices:
            self._devices[index] = DeviceMemory(self._limit_bytes, None if self._devices else self.log)
        return self._devices[index]

    def use(self) -> MemoryUse | None:
        """Returns the use of the GPU that is used most; None if none is used."""
        uses = [each.use() for each in self._devices.values()]
        return max(uses, key=lambda use: use.allocated_bytes, default=None)

    def note_operation(self, func: Any, args: tuple[Any, ...], leaves: list[Any], results: list[Any]) -> None:
        """An op has run on shapes. Allocates its results; allocates and frees what its kernel needs while it runs."""
        uses_parameter = self._label_parameters(leaves)
        made = [each for each in results if isinstance(each, FakeTensor) and each.fake_device.type == "cuda"]
        if not made:
            return
        phase = self._phases.now
        category = self._category(phase)
        if phase == _SET_UP and uses_parameter:  # moved, converted or initialized
            category = _PARAMETERS
        for tensor in made:
            self._add(tensor, category, phase)
        self._use_workspace(func, args, made[0].fake_device.index or 0, phase)

    def note_reduced(self, tensors: list[torch.Tensor], by_ddp: bool) -> None:
        """What ranks reduce during backward are gradients: DDP's buckets, FSDP's shards."""
        if self._phases.now == _BACKWARD:
            self.label(tensors, _GRADIENTS)
            if by_ddp:
                self._keep_for_nccl(tensors, 1 + torch._C._current_graph_task_id())

    def _keep_for_nccl(self, tensors: list[torch.Tensor], backward: int) -> None:
        """DDP takes the future of an op and does not wait for its handle: nccl keeps the tensors then, until its
        watchdog has seen that the op is over, and another op begins. When that is differs from run to run. Python is
        ahead of the GPU, so at the latest it is in the next backward: buckets that DDP has made anew live beside the
        old ones. Hence two peaks: with what only nccl keeps, and without."""
        if backward != self._last_reducing:
            self._last_reducing, kept, self._kept = backward, self._kept, []
            for live, block in kept:
                self._devices[live.device].note_kept(-block.size_bytes)
                self._devices[live.device].free(block, live.category)
        for tensor in tensors:
            if reduced := self._live.get(_storage_number(tensor)):
                reduced.kept_by = backward

    def label(self, tensors: Iterable[torch.Tensor], category: int) -> None:
        for tensor in tensors:
            live = self._live.get(_storage_number(tensor))
            if live is not None and live.category != category and live.block is not None:
                totals = self._devices[live.device].totals
                totals[live.category] -= live.block.size_bytes
                totals[category] += live.block.size_bytes
            if live is not None:
                live.category = category

    def resized(self, storage: torch.UntypedStorage) -> None:
        """The new block is allocated before the old one is freed."""
        live = self._live.get(storage._cdata)
        if live is None:
            return
        old, memory = live.block, self._devices[live.device]
        size = storage.nbytes()
        live.block = memory.allocate(size, live.category, self._phases.now) if size else None
        if old is not None:
            memory.free(old, live.category)

    def _making_gradients(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A function of DDP that makes its buckets."""

        @functools.wraps(plain)
        def make(*args: Any, **kwargs: Any) -> Any:
            self._is_making_gradients = True
            try:
                return plain(*args, **kwargs)
            finally:
                self._is_making_gradients = False

        return make

    def _category(self, phase: str) -> int:
        if self._is_making_gradients:
            return _GRADIENTS
        if phase == _BACKWARD:
            return _ACTIVATIONS if torch.is_grad_enabled() else _GRADIENTS
        return _MADE_IN[phase]

    def _label_parameters(self, leaves: list[Any]) -> bool:
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and _is_parameter(leaf)]
        self.label(found, _PARAMETERS)
        return bool(found)

    def _add(self, tensor: torch.Tensor, category: int, phase: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        live = _Live(storage, self._drop)
        live.key, live.category, live.device, live.kept_by = key, category, tensor.device.index or 0, 0
        size = storage.nbytes()
        live.block = self.on(live.device).allocate(size, category, phase) if size else None
        self._live[key] = live

    def _drop(self, live: Any) -> None:
        self._live.pop(live.key, None)
        if live.block is None:
            return
        if live.kept_by and live.kept_by == self._last_reducing:
            self._devices[live.device].note_kept(live.block.size_bytes)
            self._kept.append((live, live.block))
        else:
            self._devices[live.device].free(live.block, live.category)

    def _use_workspace(self, func: Any, args: tuple[Any, ...], index: int, phase: str) -> None:
        handle = index, phase == _BACKWARD, device.current_stream_number()
        if func in workspaces.MATRIX_PRODUCTS and handle not in self._handles:
            self._handles.add(handle)
            self.on(index).allocate(workspaces.cublas_bytes(self._capability), _OTHER, phase)
        for block in [self.on(index).allocate(size, _OTHER, phase) for size in workspaces.kernel_bytes(func, args)]:
            self.on(index).free(block, _OTHER)

    def _enter_module(self, module: torch.nn.Module) -> None:
        if id(module) not in self._known_modules:
            self._known_modules.update(map(id, module.modules()))
            self.label(module.parameters(), _PARAMETERS)
        self._phases.enter_forward()

    def _leave_step(self, optimizer: Any) -> None:
        self._phases.leave_step()
        state = (value for values in optimizer.state.values() for value in values.values())
        self.label((each for each in state if isinstance(each, torch.Tensor)), _OPTIMIZER)


def _is_parameter(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.nn.Parameter or "_is_param" in tensor.__dict__


def _local(tensor: Any) -> torch.Tensor:
    """The part of a DTensor that is here."""
    return getattr(tensor, "_local_tensor", tensor)  # type: ignore[no-any-return]


def _storage_number(tensor: Any) -> int:
    """0 of a tensor that has no storage of its own: torch.func wraps those that it computes with."""
    try:
        return int(_local(tensor).untyped_storage()._cdata)
    except NotImplementedError:
        return 0


def _follow_resizes(allocations: Allocations) -> None:
    """In this way FSDP frees the memory of gathered parameters."""
    plain = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        resized = plain(storage, size)
        allocations.resized(storage)
        return resized

    setattr(torch.UntypedStorage, "resize_", resize)  # noqa: B010  (typing: a replaced function)
