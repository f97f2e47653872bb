"""`Fsdp`: how the ranks share a model of which each holds a part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

Units = str | Sequence[str] | Callable[[str, nn.Module], bool] | None


@dataclass(frozen=True)
class Fsdp:
    """FSDP2 with options. `strategy="fsdp"` is `Fsdp()`, `strategy="hsdp"` is `Fsdp(replicas="hosts")`.

    `units` are gathered one at a time: names of classes, or a function of a module's name and the module. Default:
    transformers' `_no_split_modules` if the model has them, else the layers of every ModuleList.
    `replicas`: ranks are divided into so many groups, each of which has the whole model; "hosts": one for each host.
    `offload`: parameters, gradients and the optimizer's state are in the host's memory.
    `recompute`: activations of a unit are computed again in backward instead of being kept.
    `tensor_parallel`: so many neighbouring ranks share each layer, by `plan` or by the model's own plan.
    """

    units: Units = None
    replicas: int | Literal["hosts"] = 1
    offload: bool = False
    recompute: bool = False
    tensor_parallel: int = 1
    plan: Mapping[str, Any] | None = None
