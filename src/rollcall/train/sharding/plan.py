"""Tensor parallel by a plan: which layer is cut by columns, which by rows."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn

from rollcall.train.sharding.options import Fsdp

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The words that transformers' plans use.
Style = Literal[
    "colwise",
    "rowwise",
    "colwise_rep",
    "rowwise_rep",
    "sequence_parallel",
    "colwise_gather_output",
    "rowwise_split_input",
    "embedding_rowwise",
]
_ATTRIBUTES = ("tensor_parallel_plan", "tp_plan", "_tp_plan")


def plan_of(model: nn.Module, options: Fsdp) -> Mapping[str, Any]:
    """The user's plan, or the model's own: an attribute, or a method that returns it."""
    if options.plan is not None:
        return options.plan
    found = next((value for name in _ATTRIBUTES if (value := getattr(model, name, None))), None)
    return (found() if callable(found) else found) or {}


def find_problem(model: nn.Module, options: Fsdp) -> str | None:
    if options.tensor_parallel == 1:
        return None
    plan = plan_of(model, options)
    if not plan:
        return (
            f"tensor_parallel is {options.tensor_parallel}, but {type(model).__name__} has no plan: "
            "give Fsdp(plan=...), such as {'blocks.*.up': 'colwise', 'blocks.*.down': 'rowwise'}"
        )
    names = [name for name, _ in model.named_modules()]
    for pattern, style in plan.items():
        if not any(fnmatch(name, pattern) for name in names):
            return f"plan: no module of the model is named {pattern!r}"
        if isinstance(style, str) and style not in get_args(Style):
            return f"plan: {style!r} of {pattern!r} is not known: use {', '.join(get_args(Style))}, or torch's styles"
    return None


def parallelize(model: nn.Module, mesh: "DeviceMesh", plan: Mapping[str, Any]) -> None:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    styles: dict[str, Callable[[], Any]] = {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        "sequence_parallel": SequenceParallel,
        # transformers 5 has other names for what version 4 called _rep.
        **dict.fromkeys(("colwise_rep", "colwise_gather_output"), lambda: ColwiseParallel(output_layouts=Replicate())),
        **dict.fromkeys(
            ("rowwise_rep", "rowwise_split_input", "embedding_rowwise"),
            lambda: RowwiseParallel(input_layouts=Replicate()),
        ),
    }
    parallelize_module(
        model, mesh, {name: styles[style]() if isinstance(style, str) else style for name, style in plan.items()}
    )
