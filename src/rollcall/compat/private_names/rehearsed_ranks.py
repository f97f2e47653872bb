"""Used by rehearse/, and by record/hooks/functional.py for its tensors."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="rehearsed_ranks",
    purpose="runs a rank of `rollcall rehearse`: tensors without data on a GPU that is not there",
    lost_without="`rollcall rehearse` does not work",
    uses=(
        "copyreg:_slotnames",
        "torch:UntypedStorage._cdata",
        "torch:_C._TorchDispatchModeKey",
        "torch:_C._cuda_isCurrentStreamCapturing",
        "torch:_C._current_graph_task_id",
        "torch:_C._get_dispatch_mode",
        "torch:_C._set_only_lift_cpu_tensors",
        "torch:_C._swap_tensor_impl",
        "torch._C._distributed_c10d:_create_work_from_future",
        "torch._subclasses.fake_tensor:FakeTensorMode",
        "torch.distributed.distributed_c10d:_new_process_group_helper",
        "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty",
        "torch.ops:aten._local_scalar_dense",
        "torch.ops:aten._scaled_dot_product_efficient_attention",
        "torch.ops:aten._scaled_dot_product_flash_attention",
        "torch.ops:aten._scaled_dot_product_flash_attention_backward",
        "torch.ops:aten._scaled_mm",
        "torch.ops:aten._to_copy",
        "torch._ops:OpOverload._can_decompose",
        "torch.optim.optimizer:_foreach_supported_types",
        "torch.utils._foreach_utils:_foreach_supported_types",
        "torch.testing._internal.distributed.fake_pg:FakeStore",
        "torch.utils._python_dispatch:TorchDispatchMode",
        "torch.utils._pytree:tree_map",
    ),
    tried_on=("torch 2.13",),
)
