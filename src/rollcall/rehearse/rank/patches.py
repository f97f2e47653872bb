"""Parts of torch that look at the data or the address of a tensor, and are replaced in a rehearsed rank."""

import copyreg
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d
from torch.nn.parallel import distributed as ddp
from torch.optim import optimizer
from torch.utils import _foreach_utils, cpp_extension

from rollcall.rehearse.memory import attention
from rollcall.rehearse.rank import values
from rollcall.rehearse.rank.tensors import Data, pin
from rollcall.rehearse.rank.unsupported import STUB, Unsupported


def install(data: Data, capability: tuple[int, int]) -> None:
    _replace_reads(data)
    _replace_writes(data)
    torch.distributions.Distribution.set_default_validate_args(False)  # it asks whether unknown numbers are valid
    _replace_data_setter()
    _replace_ddp()
    _replace_fsdp()
    _shorten_sharding()
    _replace_attention(capability)
    _replace_addresses()
    _allow_foreach()
    replace_memory_pinning()
    replace_generators()
    _replace_marks()
    replace_compile()
    _refuse_captures()
    _add_shapes()
    substitute(torch.Tensor, "record_stream", lambda tensor, stream: None)
    # What a module's parameters are moved to has another class: torch swaps the tensors then, so that optimizers and
    # tied weights keep the objects that they have.
    torch.__future__.set_swap_module_params_on_conversion(True)
    substitute(torch.utils, "swap_tensors", _swap)
    _replace_load_state()


def substitute(owner: Any, name: str, value: Any) -> None:
    """Put another function in the place of this one. The type checker refuses an assignment."""
    setattr(owner, name, value)


def _replace_load_state() -> None:
    """Copies what is loaded into the parameters, as without the swaps above: DDP has hooks on them."""
    plain: Any = torch.nn.Module._load_from_state_dict

    def load(*args: Any, **kwargs: Any) -> None:
        torch.__future__.set_swap_module_params_on_conversion(False)
        try:
            plain(*args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(True)

    substitute(torch.nn.Module, "_load_from_state_dict", load)


def _swap(first: torch.Tensor, second: torch.Tensor) -> None:
    """Swaps as torch.utils.swap_tensors does, which refuses tensors with weak references: the fake mode holds some."""
    slots = set(copyreg._slotnames(type(first))) & set(copyreg._slotnames(type(second)))  # type: ignore[attr-defined]
    first.__class__, second.__class__ = second.__class__, first.__class__
    for name in slots:  # a DTensor has its parts there
        value = getattr(first, name)
        setattr(first, name, getattr(second, name))
        setattr(second, name, value)
    mine, its = dict(first.__dict__), dict(second.__dict__)
    # What a program has noted on a parameter stays there, as when only the data of the tensor is replaced.
    for tensor, attributes in ((first, {**mine, **its}), (second, mine)):
        tensor.__dict__.clear()
        tensor.__dict__.update(attributes)
    torch._C._swap_tensor_impl(first, second)


def _replace_reads(data: Data) -> None:
    """item, tolist and numpy: return known values; else a number that remembers that it is not known."""
    item, tolist, numpy = torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy
    plain_format: Any = torch.Tensor.__format__

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

    def read_array(tensor: torch.Tensor, *, force: bool = False) -> Any:
        """Refuses a tensor on the GPU, or one that needs a gradient, with torch's own message."""
        if not isinstance(tensor, FakeTensor):
            return numpy(tensor, force=force)
        if tensor.is_cuda and not force:
            raise TypeError(
                f"can't convert {tensor.device} device type tensor to numpy."
                " Use Tensor.cpu() to copy the tensor to host memory first."
            )
        if tensor.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        known = data.get(tensor.detach())
        return numpy(_assumed(tensor) if known is None else known, force=force)

    def formatted(tensor: torch.Tensor, spec: str) -> str:
        is_number = isinstance(tensor, FakeTensor) and tensor.dim() == 0
        return format(read_item(tensor), spec) if is_number else str(plain_format(tensor, spec))

    substitute(torch.Tensor, "item", read_item)
    substitute(torch.Tensor, "tolist", read_list)
    substitute(torch.Tensor, "numpy", read_array)
    substitute(torch.Tensor, "__format__", formatted)
    for name, answer in (("isfinite", True), ("isnan", False), ("isinf", False)):
        for owner in (torch, torch.Tensor):
            plain = getattr(owner, name)
            substitute(owner, name, _known_to_jit(plain, _answering(plain, answer, data)))


_TAKE_NUMBERS = (
    *("fill_", "add_", "sub_", "mul_", "div_", "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
)


def _replace_writes(data: Data) -> None:
    """A number that is not known may become a part of a tensor: the tensor is not known then, either."""
    for owner, names in ((torch, ("tensor", "as_tensor", "full")), (torch.Tensor, _TAKE_NUMBERS)):
        for name in names:
            plain = getattr(owner, name)
            substitute(owner, name, _known_to_jit(plain, _taking(plain, data)))
    pickled: Any = distributed_c10d._object_to_tensor

    @functools.wraps(pickled)
    def tell(*args: Any, **kwargs: Any) -> Any:
        with values.telling():
            return pickled(*args, **kwargs)

    substitute(distributed_c10d, "_object_to_tensor", tell)


def _known_to_jit(plain: Any, replaced: Any) -> Any:
    """torch.jit.script knows torch's own functions by their identity, and would compile others."""
    if op := find_jit_builtin(plain):
        register: Any = torch.jit._builtins._register_builtin
        register(replaced, op)
    return replaced


def find_jit_builtin(function: Any) -> Any:
    find: Any = torch.jit._builtins._find_builtin
    return find(function)


def _taking(plain: Any, data: Data) -> Any:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        if notes := list(values.noted_in(args)):
            made = args[0] if result is None else result
            if isinstance(made, FakeTensor):
                data.forget(made)
            else:  # a real tensor has to have a number
                for note in notes:
                    note.decided.add(values.users_place())
        return result

    return call


def _answering(plain: Any, answer: bool, data: Data) -> Any:
    """The assumed value of unknown numbers is finite. So `isfinite` is True for them: otherwise each program that
    checks its loss would fail here."""

    @functools.wraps(plain)
    def ask(tensor: torch.Tensor) -> torch.Tensor:
        asked: torch.Tensor = plain(tensor)
        if isinstance(asked, FakeTensor) and data.get(asked) is None:
            values.notes.note("finite")
            data.set(asked, torch.full(tuple(asked.shape), answer, device="cpu"))
        return asked

    return ask


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

    substitute(torch.Tensor, "data", property(plain.__get__, set_data))


def _replace_ddp() -> None:
    """DDP compares the shapes of parameters between ranks in C++, which reads their data; explain compares what each
    rank's ring says of its module."""

    def skip(*_: Any, **__: Any) -> None: ...

    substitute(dist, "_verify_params_across_processes", skip)
    substitute(ddp, "_verify_param_shape_across_processes", skip)
    substitute(dist.Logger, "set_runtime_stats_and_log", skip)


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

    substitute(_fsdp_param, "_chunk_with_empty", _Chunks)


def _shorten_sharding() -> None:
    """For each DTensor of a list, torch asks all of the list whether their shards are strided: the time of an
    optimizer's step grows with the square of its parameters. Here it is asked once for each op."""
    from torch.distributed.tensor import _sharding_prop
    from torch.distributed.tensor.placement_types import _StridedShard

    plain: Any = _sharding_prop._propagate_use_strided_shard_flag
    asked: list[Any] = [None, False]  # the op that was asked last, and whether one of its tensors has such shards

    def propagate(strategy: Any, schema: Any) -> None:
        if asked[0] is not schema:
            has_strided = any(isinstance(each, _StridedShard) for spec in schema.args_spec for each in spec.placements)
            asked[:] = schema, has_strided
        if asked[1]:
            plain(strategy, schema)

    substitute(_sharding_prop, plain.__name__, propagate)


def _allow_foreach() -> None:
    """On a GPU, optimizers update all parameters in one call if their types are listed: that needs more memory."""
    for types in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        types.append(FakeTensor)


def _replace_attention(capability: tuple[int, int]) -> None:
    """By the kernel that a GPU would run, as far as it differs in what it keeps."""
    functional = torch.nn.functional
    plain = functional.scaled_dot_product_attention

    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        is_pretended = isinstance(query, FakeTensor) and query.is_cuda
        kernel = attention.PLAIN
        if is_pretended:
            kernel = attention.choose(query, key, value, attn_mask, is_causal, enable_gqa, capability)
        if kernel == attention.PLAIN:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return attention.run(kernel, query, key, value, attn_mask, dropout_p, is_causal, scale)

    substitute(functional, "scaled_dot_product_attention", attend)


def _replace_addresses() -> None:
    """A storage without memory has the address 0. Programs that save a model look there for what is the same tensor."""
    plain = torch.UntypedStorage.data_ptr

    def address(storage: Any) -> int:
        return plain(storage) or int(storage._cdata)

    substitute(torch.UntypedStorage, "data_ptr", address)


def replace_memory_pinning() -> None:
    init = torch.utils.data.DataLoader.__init__

    @functools.wraps(init)  # Lightning reads the names of its arguments
    def without_pinning(loader: Any, *args: Any, **kwargs: Any) -> None:
        init(loader, *args, **kwargs)
        loader.pin_memory = False

    substitute(torch.utils.data.DataLoader, "__init__", without_pinning)
    substitute(torch.Tensor, "pin_memory", lambda tensor, *_: pin(tensor))


def replace_generators() -> None:
    plain = torch.Generator

    class Generator(plain):  # type: ignore[misc,valid-type]
        """Draws on the CPU, whichever device is named: random numbers on the device are not known anyway."""

        def __new__(cls, device: Any = "cpu") -> Any:
            made = plain.__new__(cls)
            made.named = torch.device(device)
            return made

        @property
        def device(self) -> torch.device:
            return self.named  # type: ignore[no-any-return]

    substitute(torch, "Generator", Generator)
    substitute(
        torch.cuda, "default_generators", tuple(Generator(f"cuda:{n}") for n in range(torch.cuda.device_count()))
    )


def replace_compile() -> None:
    """torch.compile returns the function as it is: its ops between ranks are the same, and there is no device to
    compile for."""

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile_nothing
        if isinstance(model, torch.nn.Module):
            model.__dict__["_orig_mod"] = model  # programs save the module inside
        return model

    substitute(torch, "compile", compile_nothing)
    substitute(torch.nn.Module, "compile", lambda module, *_, **__: None)


def _refuse_captures() -> None:
    """A graph repeats what was captured without Python, so that its ops between ranks would not be seen. What an
    extension does is not seen either."""

    def refusal(what: str, advice: str) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            raise Unsupported(what, advice)

        return refuse

    for owner in (torch.cuda, torch.cuda.graphs):
        for name in ("CUDAGraph", "graph", "make_graphed_callables"):
            substitute(owner, name, refusal("a CUDA graph cannot be rehearsed", "run the same without a capture"))
    for name in ("load", "load_inline"):
        substitute(cpp_extension, name, refusal("an extension in C++ is compiled here, and cannot be rehearsed", STUB))


def _add_shapes() -> None:
    """Adds the shapes of SyncBatchNorm's ops, which torch knows on real devices only. Statistics of half are
    float32."""
    library: Any = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
    _kept.append(library)

    def per_channel(like: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        whole = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
        return tuple(like.new_empty(like.size(1), dtype=whole) for _ in range(count))

    def reduce_backward(grad: Any, like: Any, mean: Any, invstd: Any, weight: Any, *wanted: bool) -> Any:
        of_input, of_weight, of_bias = wanted
        asked = (of_input, of_input, of_weight, of_bias)
        return tuple(each if is_asked else None for each, is_asked in zip(per_channel(like, 4), asked, strict=True))

    # Statistics of ranks without input are left out, but not during a capture: which ranks those are is not known.
    forward = torch.nn.SyncBatchNorm.forward

    def forward_of_all(module: Any, batch: torch.Tensor) -> torch.Tensor:
        before = torch.cuda.is_current_stream_capturing
        substitute(torch.cuda, "is_current_stream_capturing", lambda: True)
        try:
            return forward(module, batch)
        finally:
            substitute(torch.cuda, "is_current_stream_capturing", before)

    substitute(torch.nn.SyncBatchNorm, "forward", forward_of_all)
    library.impl("batch_norm_stats", lambda like, eps: per_channel(like, 2))
    library.impl("batch_norm_gather_stats_with_counts", lambda like, *_: per_channel(like, 2))
    library.impl("batch_norm_elemt", lambda like, *_: torch.empty_like(like))
    library.impl("batch_norm_backward_reduce", reduce_backward)
    library.impl("batch_norm_backward_elemt", lambda grad, like, *_: torch.empty_like(like))


_kept: list[Any] = []  # a library's ops go with it


def _replace_marks() -> None:
    """Replaces marks for a profiler of the GPU. Torch's own one is left with the CPU: it would warn at each op,
    with a stack of C++."""
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        substitute(torch.cuda.nvtx, name, lambda *_: 0)
    owner: Any = torch.profiler.profiler._KinetoProfile
    init = owner.__init__

    @functools.wraps(init)
    def of_the_cpu(profiler: Any, *_: Any, activities: Any = None, **kwargs: Any) -> None:
        init(profiler, activities={torch.profiler.ProfilerActivity.CPU}, **kwargs)

    owner.__init__ = of_the_cpu
