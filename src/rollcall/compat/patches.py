"""All patches and all uses of private names, with what each does here. `rollcall doctor` prints this table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollcall.compat import (
    dynamo_frames,
    gloo_exit,
    gloo_listener,
    kineto_thread,
    torch_dns,
    torch_groups,
    torch_timeouts,
)
from rollcall.compat.patch import Patch
from rollcall.compat.private_names import (
    checkpoint_files,
    compiled_modules,
    elastic_agent,
    fast_import,
    nccl_premul_sum,
    numa_binding,
    pytest_internals,
    rehearsed_ranks,
    shell_groups,
    training,
)
from rollcall.compat.private_names.python import (
    python_children,
    python_finalizers,
    python_frames,
    python_logging,
    python_main,
)
from rollcall.compat.private_names.recorder import (
    record_ddp,
    record_exits,
    record_functional,
    record_process_group,
    record_tensors,
)

PATCHES: tuple[Patch, ...] = tuple(
    module.PATCH
    for module in (
        gloo_listener,
        gloo_exit,
        torch_dns,
        record_process_group,
        record_ddp,
        record_functional,
        record_exits,
        record_tensors,
        torch_groups,
        torch_timeouts,
        kineto_thread,
        dynamo_frames,
        elastic_agent,
        fast_import,
        python_frames,
        python_main,
        python_children,
        python_finalizers,
        python_logging,
        checkpoint_files,
        compiled_modules,
        pytest_internals,
        nccl_premul_sum,
        numa_binding,
        shell_groups,
        training,
        rehearsed_ranks,
    )
)


@dataclass(frozen=True)
class PatchState:
    """One patch on this machine."""

    name: str
    purpose: str
    state: str  # "ok", "off", or why it does not work
    lost_without: str
    tried_on: str
    switch: str  # what to add to the environment to leave it out; empty: it cannot be left out


def rows(environ: Mapping[str, str], patches: Iterable[Patch] = PATCHES) -> list[PatchState]:
    return [_row(patch, environ) for patch in patches]


def _row(patch: Patch, environ: Mapping[str, str]) -> PatchState:
    state = "off" if patch.is_off(environ) else patch.check() or "ok"
    switch = f"ROLLCALL_COMPAT=-{patch.name}" if patch.can_be_left_out else ""
    return PatchState(patch.name, patch.purpose, state, patch.lost_without, ", ".join(patch.tried_on), switch)
