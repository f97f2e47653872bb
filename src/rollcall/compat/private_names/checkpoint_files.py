"""Used by train/checkpoint/staging.py and train/checkpoint/storage.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="checkpoint_files",
    purpose="writes snapshots in the format of torch.distributed.checkpoint",
    lost_without="Snapshot fails",
    uses=(
        "torch.distributed.checkpoint.filesystem:_StorageInfo",
        "torch.distributed.checkpoint.filesystem:_StoragePrefix",
        "torch.distributed.checkpoint.filesystem:_split_by_size_and_type",
        "torch.distributed.checkpoint.metadata:_MEM_FORMAT_ENCODING",
        "torch.distributed.tensor:DTensor._spec",
    ),
)
