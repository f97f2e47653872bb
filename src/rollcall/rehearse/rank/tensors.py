"""A dispatch mode in which tensors on a CUDA device have shapes and no data, and tensors on the CPU are real.

Large floating-point tensors on the CPU have no data either: they are weights on their way to the device.
"""

import functools
import math
import os
import threading
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rollcall.rehearse.memory.allocations import Allocations
from rollcall.rehearse.rank import collectives, data_shapes, values
from rollcall.rehearse.rank.unsupported import STUB, Unsupported

aten = torch.ops.aten
_PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}
_CPU = torch.device("cpu")
# Weights are floating-point, and programs do not branch on them. They may branch on other data, such as a list of
# lengths, which stays real unless it would fill the memory of a laptop.
_MOST_FLOAT_BYTES, _MOST_OTHER_BYTES = 1 << 20, 256 << 20
_SIZED_FACTORIES = {
    getattr(aten, name).default if overload == "default" else getattr(getattr(aten, name), overload)
    for name, overload in (
        ("empty", "memory_format"),
        ("empty_strided", "default"),
        ("zeros", "default"),
        ("ones", "default"),
        ("full", "default"),
        ("randn", "default"),
        ("rand", "default"),
    )
}
_FAKE_MODE = torch._C._TorchDispatchModeKey.FAKE
_COLLECTIVES = "c10d"
_HANDED_ON = ("wait_tensor", "_wrap_tensor_autograd")  # give what they get; on shapes alone, as another tensor
_FUNCTIONAL_SPACES = ("_c10d_functional", "_c10d_functional_autograd")


def is_pretended(value: Any) -> bool:
    return isinstance(value, FakeTensor)


class Data:
    """What is in tensors, whether they are real or pretended."""

    def __init__(self) -> None:
        self.storages = values.Storages()

    def get(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """None if it is not known. Weights are never known: the results of a model are not computed."""
        if tensor.requires_grad or type(tensor) is torch.nn.Parameter:
            return None
        if is_pretended(tensor):
            return self.storages.get(tensor)
        return tensor if values.is_followed(tensor.numel() * tensor.element_size(), tensor.dtype) else None

    def set(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        if is_pretended(tensor):
            self.storages.set(tensor, data)
        else:
            tensor.detach().copy_(data)

    def forget(self, tensor: torch.Tensor, is_own: bool = False) -> None:
        """Fills a real tensor with the assumed value of unknown numbers, except where it holds values of this rank.
        Both are noted."""
        if is_pretended(tensor):
            self.storages.forget(tensor)
            return
        value = values.read_plainly(tensor.dtype)
        if not is_own:
            tensor.detach().fill_(value)


class PretendedDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True  # such as flex attention

    def __init__(self, allocations: Allocations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.data = Data()
        self._allocations = allocations
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._lock = threading.RLock()  # the fake mode has one list for all threads
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        """A thread that was in an op when the process was forked is not in the child."""
        self._lock = threading.RLock()

    def enter_all_threads(self) -> None:
        """Enters the mode for good, in this thread and in those that it starts: torch keeps the modes of each thread
        apart."""
        start: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def start_entered(thread: threading.Thread) -> None:
            self._enter_thread()
            start(thread)

        setattr(threading.Thread, "_bootstrap_inner", start_entered)  # noqa: B010  (typing: a replaced function)
        self._enter_thread()

    def _enter_thread(self) -> None:
        _prepare_fake_tensors()
        # Each thread of the engine would be a thread of the ring. Backward runs in the thread that calls it instead.
        torch.autograd.set_multithreading_enabled(False).__enter__()
        self.__enter__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # such as DTensor: the ops on its parts come back here
        with self._lock:
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch._C._get_dispatch_mode(_FAKE_MODE) is not None:
            return func(*args, **kwargs)  # torch itself asks for shapes, as DTensor does of each op: nothing is made
        if isinstance(func, HigherOrderOperator):
            return self._run_higher_order(func, args, kwargs)
        if _is_composite(func):  # called below autograd, as inside the ops of a DTensor: its parts come back here
            with self:
                return func.decompose(*args, **kwargs)
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        if func.namespace == _COLLECTIVES:
            if "reduce" in func._schema.name:
                self._allocations.note_reduced(list(filter(is_pretended, leaves)), collectives.is_called_by_ddp())
            return collectives.run(func, args, self.data)
        has_pretended = any(map(is_pretended, leaves))
        if func is aten.is_pinned.default:
            return getattr(args[0], _PINNED, False)
        if not has_pretended and not _goes_to_device(func, args, kwargs):
            if func is aten.resize_.default:
                return _resize_with_zeros(func, args, kwargs)
            return pin(func(*args, **{**kwargs, "pin_memory": False})) if _wants_pin(kwargs) else func(*args, **kwargs)
        if func is aten._local_scalar_dense.default:
            return self._read(args[0])
        if func is aten.resize_.default:
            return self._resize(func, args, kwargs)
        if func is aten.copy_.default and not is_pretended(args[0]):
            return self._copy_to_real(args[0], args[1])
        if func is aten._to_copy.default and has_pretended and _is_cpu(kwargs.get("device")):
            known = self.data.get(args[0])
            if known is not None:
                return func(known, **kwargs)
        result = self._pretend(func, args, kwargs, leaves)
        results = pytree.tree_leaves(result)
        if any(is_pretended(each) and each.layout is not torch.strided for each in results):
            raise Unsupported("a sparse tensor cannot be rehearsed", "use a dense one here, such as sparse=False")
        self._allocations.note_operation(func, args, leaves, results)
        return result

    def _run_higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op that takes functions. Of some, torch knows the shapes of the results."""
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        if not any(map(is_pretended, leaves)):
            return func(*args, **kwargs)
        try:
            with self._fake:
                result = func(*args, **kwargs)
        except NotImplementedError:
            raise Unsupported(f"{func.name()} says nothing about the shape of its result", STUB) from None
        self._allocations.note_operation(func, args, leaves, pytree.tree_leaves(result))
        return result

    def make_unknown(self, shape: Any, stride: Any, dtype: torch.dtype, place: torch.device) -> torch.Tensor:
        """A tensor without data, on the CPU, too."""
        if place.type == "cuda":
            return torch.empty_strided(shape, stride, dtype=dtype, device=place)
        with self._lock, self._fake:
            return torch.empty_strided(shape, stride, dtype=dtype, device=place)

    def _read(self, tensor: torch.Tensor) -> Any:
        known = self.data.get(tensor.detach())
        return values.read_plainly(tensor.dtype) if known is None else known.item()

    def _resize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        known = self.data.get(args[0])
        kept = None if known is None else known.flatten().clone()
        self.data.storages.forget(args[0])
        with self._fake:
            func(*args, **kwargs)
        target: torch.Tensor = args[0]
        self._allocations.resized(target.untyped_storage())
        if kept is not None:
            self.data.set(target, _resize_with_zeros(func, (kept, *args[1:]), kwargs))
        return target

    def _copy_to_real(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        known = self.data.get(source)
        if known is None:
            self.data.forget(target)
            return target
        return target.copy_(known)

    def _pretend(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        """Run the op on shapes; and on data, where all of it is known."""
        if func in _OVERWRITES:
            return self._overwrite(func, args, kwargs)
        _check_matrices(func, args)
        known = self._known_arguments(func, args, kwargs, leaves)
        shapes = args, kwargs
        if any(isinstance(leaf, torch.Tensor) and not is_pretended(leaf) for leaf in leaves):
            shapes = pytree.tree_map_only(torch.Tensor, self._one_as_pretended, shapes)
        try:
            with self._fake:
                result = func(*shapes[0], **shapes[1])
        except (DynamicOutputShapeException, DataDependentOutputException):
            if known is not None:
                return self._from_known(func(*known[0], **known[1]))
            if func is aten._pack_padded_sequence.default and (lengths := self.data.get(args[1])) is not None:
                rows, sizes = data_shapes.packed(lengths)
                with self._fake:
                    return shapes[0][0].new_empty((rows, *args[0].shape[2:])), sizes
            with self._fake:
                return data_shapes.run(func, *shapes)
        except UnsupportedOperatorException:
            advice = "register a function for its shapes with torch.library.register_fake"
            raise Unsupported(f"{func._schema.name} says nothing about the shape of its result", advice) from None
        if func.namespace in _FUNCTIONAL_SPACES:
            self._fill_functional(func, args, result)
        elif known is not None:
            self._fill(func, known, leaves, result)
        elif func is _UNSCALE:
            values.notes.note(
                "finite"
            )  # so the flag for infinite gradients stays as it is: a GradScaler makes its step
        elif func._schema.is_mutable:
            self._forget_written(func, args, kwargs)
        return result

    def _overwrite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """The old contents of the target do not matter: it is known if the new contents are known."""
        target, *sources = args
        value = sources[0] if sources else 0
        data = self.data.get(value) if isinstance(value, torch.Tensor) else torch.tensor(value, device="cpu")
        shapes = pytree.tree_map_only(torch.Tensor, self._one_as_pretended, args)
        with self._fake:
            func(*shapes, **kwargs)
        if data is None or target.requires_grad:
            self.data.storages.forget(target)
        else:
            self.data.storages.set(target, data)
        return target  # type: ignore[no-any-return]

    def _one_as_pretended(self, tensor: torch.Tensor) -> torch.Tensor:
        """By a new tensor of the same layout: FakeTensorMode.from_tensor would keep each one."""
        if is_pretended(tensor):
            return tensor
        with self._fake:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    def _known_arguments(self, func: Any, args: Any, kwargs: Any, leaves: list[Any]) -> Any:
        """Real arguments in place of the pretended ones; None if the data of one is not known, or is random."""
        if func.namespace not in ("aten", "prims") or torch.Tag.nondeterministic_seeded in func.tags:
            return None
        if func in _SHAPES_ONLY or _is_large(func, args):
            return None
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        found = {id(tensor): self.data.get(tensor) for tensor in tensors}
        if any(each is None for each in found.values()):
            return None

        def real(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return found[id(value)]
            return _CPU if isinstance(value, torch.device) else value

        return pytree.tree_map(real, (args, kwargs))

    def _fill(self, func: Any, known: Any, leaves: list[Any], result: Any) -> None:
        """Compute with the data, and keep the results. Views of a known storage are known already."""
        if func.is_view:
            return
        computed = func(*known[0], **known[1])
        written = {id(leaf) for leaf in leaves if is_pretended(leaf)}
        for made, data in zip(pytree.tree_leaves(result), pytree.tree_leaves(computed), strict=True):
            is_new = is_pretended(made) and id(made) not in written  # an op in place has written to the data itself
            if is_new and isinstance(data, torch.Tensor) and data.shape == made.shape:
                self.data.set(made, data)

    def _from_known(self, computed: Any) -> Any:
        """A result whose shape follows from data, which is known."""
        device = torch.device("cuda", torch.cuda.current_device())

        def pretended(tensor: torch.Tensor) -> torch.Tensor:
            with self._fake:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            self.data.set(made, tensor)
            return made

        return pytree.tree_map_only(torch.Tensor, pretended, computed)

    def _fill_functional(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        name = func._schema.name.partition("::")[2]
        if name in _HANDED_ON:
            known = self.data.get(args[0].detach())
            if known is not None:
                self.data.set(result, known)
            return
        results = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
        collectives.run_functional(name, args, results, self.data)

    def _forget_written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in pytree.tree_leaves(value):
                if is_pretended(tensor):
                    self.data.storages.forget(tensor)


# The places of the two that are multiplied. Torch compares their dtypes on real devices only.
_FACTORS = {aten.mm.default: (0, 1), aten.addmm.default: (1, 2), aten.mv.default: (0, 1)}
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}
_UNSCALE = aten._amp_foreach_non_finite_check_and_unscale_.default
_OVERWRITES = {aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}
# Their results have no data of their own yet.
_SHAPES_ONLY = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default}


def _check_matrices(func: Any, args: tuple[Any, ...]) -> None:
    """Refuses what a GPU refuses, with torch's own message: a program that mixes dtypes fails on a GPU."""
    if func not in _FACTORS:
        return
    first, second = (args[place].dtype for place in _FACTORS[func])
    if first != second:
        got = " and ".join(_NAMES.get(each, str(each)) for each in (first, second))
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {got}")


def _prepare_fake_tensors() -> None:
    """What FakeTensorMode sets while it is entered, for the time between: it is entered for each op alone."""
    torch._C._set_only_lift_cpu_tensors(True)
    fake_tensor.fake_tensor_tls.non_strict_export_fake_tensor_tracker = _Nothing()  # type: ignore[assignment]


class _Nothing:
    """Replaces a set of all tensors that were ever made, which only torch.export reads."""

    def add(self, _: Any) -> None: ...

    def clear(self) -> None: ...

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


_PINNED = "_rollcall_is_pinned"


def _wants_pin(kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("pin_memory"))


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Marks a tensor as pinned memory: DDP checks that memory which it has pinned is pinned."""
    setattr(tensor, _PINNED, True)
    return tensor


def _resize_with_zeros(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Resizes, and fills the new part with zeros: what happens to be in the memory differs from pass to pass."""
    before = args[0].numel()
    resized: torch.Tensor = func(*args, **kwargs)
    if resized.numel() > before and resized.is_contiguous():
        resized.detach().view(-1)[before:].zero_()
    return resized


@functools.cache
def _is_composite(func: Any) -> bool:
    return func.namespace == "aten" and bool(func._can_decompose())


def _is_cpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cpu"


def _goes_to_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type not in ("cpu", "meta"):
        return True
    return (device is None or _is_cpu(device)) and _is_large(func, args, kwargs.get("dtype"))


def _is_large(func: Any, args: tuple[Any, ...], dtype: torch.dtype | None = None) -> bool:
    if func not in _SIZED_FACTORIES:
        return False
    dtype = dtype or torch.get_default_dtype()
    most = _MOST_FLOAT_BYTES if dtype.is_floating_point else _MOST_OTHER_BYTES
    return bool(math.prod(args[0]) * dtype.itemsize > most)
