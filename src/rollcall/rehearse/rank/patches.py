"""Parts of torch that look at the data or the address of a tensor, and are replaced in a rehearsed rank."""

import copyreg
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import distributed as ddp
from torch.optim import optimizer
from torch.utils import _foreach_utils

from rollcall.rehearse.rank import values
from rollcall.rehearse.rank.tensors import Data

_NCCL_VERSION = (2, 27, 7)


def install(data: Data) -> None:
    _replace_reads(data)
    _replace_data_setter()
    _replace_ddp()
    _replace_fsdp()
    _replace_attention()
    _replace_addresses()
    _allow_foreach()
    _replace_memory_pinning()
    _replace_generators()
    _replace_nccl_version()
    # What a module's parameters are moved to has another class: torch swaps the tensors then, so that optimizers and
    # tied weights keep the objects that they have.
    torch.__future__.set_swap_module_params_on_conversion(True)
    _set(torch.utils, "swap_tensors", _swap)


def _set(owner: Any, name: str, value: Any) -> None:
    """Typing knows nothing of replaced functions."""
    setattr(owner, name, value)


def _swap(first: torch.Tensor, second: torch.Tensor) -> None:
    """As torch.utils.swap_tensors, which refuses tensors with weak references: the fake mode holds some to its own."""
    slots = set(copyreg._slotnames(type(first))) & set(copyreg._slotnames(type(second)))  # type: ignore[attr-defined]
    first.__class__, second.__class__ = second.__class__, first.__class__
    for name in slots:  # a DTensor has its parts there
        value = getattr(first, name)
        setattr(first, name, getattr(second, name))
        setattr(second, name, value)
    mine, its = dict(first.__dict__), dict(second.__dict__)
    for tensor, attributes in ((first, its), (second, mine)):
        tensor.__dict__.clear()
        tensor.__dict__.update(attributes)
    torch._C._swap_tensor_impl(first, second)


def _replace_reads(data: Data) -> None:
    """item, tolist and numpy: what is known is handed over; else a number that remembers that it is not."""
    item, tolist, numpy = torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy

    def read_item(tensor: torch.Tensor) -> Any:
        if not isinstance(tensor, FakeTensor) or tensor.numel() != 1:
            return item(tensor)
        known = data.get(tensor.detach())
        return values.read(tensor.dtype) if known is None else known.item()

    def read_list(tensor: torch.Tensor) -> Any:
        if not isinstance(tensor, FakeTensor):
            return tolist(tensor)
        known = data.get(tensor.detach())
        return tolist(_assumed(tensor) if known is None else known)

    def read_array(tensor: torch.Tensor, **options: Any) -> Any:
        return numpy(_assumed(tensor) if isinstance(tensor, FakeTensor) else tensor, **options)

    _set(torch.Tensor, "item", read_item)
    _set(torch.Tensor, "tolist", read_list)
    _set(torch.Tensor, "numpy", read_array)


def _assumed(tensor: torch.Tensor) -> torch.Tensor:
    value = values.read_plainly(tensor.dtype)
    return torch.full(tuple(tensor.shape), value, dtype=tensor.dtype, device="cpu")


def _replace_data_setter() -> None:
    """`tensor.data = other`, where the other has another class or device: FSDP does so with its parameters."""
    plain: Any = torch.Tensor.data

    def set_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
        is_pretended = isinstance(other, FakeTensor)
        if is_pretended and (not isinstance(tensor, FakeTensor) or other.device != tensor.device):
            made = other.detach()
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, tensor.requires_grad)
            _swap(tensor, made)
        else:
            plain.__set__(tensor, other)

    _set(torch.Tensor, "data", property(plain.__get__, set_data))


def _replace_ddp() -> None:
    """DDP compares the shapes of parameters between ranks in C++, which reads their data; explain compares what each
    rank's ring says of its module."""

    def skip(*_: Any, **__: Any) -> None: ...

    _set(dist, "_verify_params_across_processes", skip)
    _set(ddp, "_verify_param_shape_across_processes", skip)
    _set(dist.Logger, "set_runtime_stats_and_log", skip)


class _Chunks:
    """The parts of a tensor, made when they are asked for: FSDP cuts one for each rank of the world, and takes one."""

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, count, dim
        self._size = -(-tensor.size(dim) // count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> torch.Tensor:
        if not -self._count <= place < self._count:
            raise IndexError(place)
        whole = self._tensor.size(self._dim)
        first = min(place % self._count * self._size, whole)
        part = self._tensor.narrow(self._dim, first, min(self._size, whole - first))
        return part if part.size(self._dim) else self._tensor.new_empty(0)


def _replace_fsdp() -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    _set(_fsdp_param, "_chunk_with_empty", _Chunks)


def _allow_foreach() -> None:
    """Optimizers take all parameters at once on a GPU, if their types are listed: that needs more memory at a time."""
    for types in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        types.append(FakeTensor)


def _replace_attention() -> None:
    """Without a GPU torch chooses the plain kernel, which keeps the whole matrix of scores: on a GPU it does not."""
    functional = torch.nn.functional
    plain = functional.scaled_dot_product_attention
    aten = torch.ops.aten

    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        is_pretended = isinstance(query, FakeTensor) and query.is_cuda
        if not is_pretended or attn_mask is not None or enable_gqa:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if query.dtype in (torch.float16, torch.bfloat16):
            flash = aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        efficient = aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, None, query.requires_grad, dropout_p, is_causal, scale=scale)[0]

    _set(functional, "scaled_dot_product_attention", attend)


def _replace_addresses() -> None:
    """A storage without memory has the address 0. Programs that save a model look there for what is the same tensor."""
    plain = torch.UntypedStorage.data_ptr

    def address(storage: Any) -> int:
        return plain(storage) or int(storage._cdata)

    _set(torch.UntypedStorage, "data_ptr", address)


def _replace_memory_pinning() -> None:
    init = torch.utils.data.DataLoader.__init__

    @functools.wraps(init)  # Lightning reads the names of its arguments
    def without_pinning(loader: Any, *args: Any, **kwargs: Any) -> None:
        init(loader, *args, **kwargs)
        loader.pin_memory = False

    _set(torch.utils.data.DataLoader, "__init__", without_pinning)
    _set(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)


def _replace_generators() -> None:
    plain = torch.Generator

    class Generator(plain):  # type: ignore[misc,valid-type]
        """Of the CPU, whichever device is named: what is random on the device is not known anyway."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return plain()

    _set(torch, "Generator", Generator)


def _replace_nccl_version() -> None:
    """A torch without CUDA has none, and programs print it."""
    _set(torch.cuda.nccl, "version", lambda: _NCCL_VERSION)
    _set(torch.cuda.nccl, "is_available", lambda tensors: True)
