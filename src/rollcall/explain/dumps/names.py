"""The names that backends give ops and dtypes in their dumps, and ours."""

import re
from dataclasses import dataclass

from rollcall.record import ring_format

UNKNOWN = "unknown"
BATCH = "batch"  # the entry that ends a batch: it alone has the state of the ops before it
# The names that backends give their ops, without the backend. What is not here is left out, and counted.
_NAMES = {
    "all_reduce": ("all_reduce", "allreduce", "allreduce_coalesced", "all_reduce_sparse", "all_reduce_coalesced"),
    "broadcast": ("broadcast", "_broadcast_oop"),
    "reduce": ("reduce", "_reduce_oop"),
    "all_gather": (
        *("all_gather", "allgather", "_all_gather_base", "_allgather_base", "all_gather_single", "all_gather_v"),
        *("allgather_coalesced", "all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced"),
    ),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "reduce_scatter": (
        *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_v"),
        "reduce_scatter_tensor_coalesced",
    ),
    "all_to_all": ("all_to_all", "alltoall", "all_to_all_single", "all_to_all_v_single", "alltoall_base"),
    "barrier": ("barrier", "all_reduce_barrier"),
    "send": ("send",),
    "recv": ("recv", "recvAnysource", "recv_any_source"),
    "new_group": ("split",),
    BATCH: ("coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced"),
}
_OP = {name: op for op, names in _NAMES.items() for name in names}
# A batch of these is one call of the program: nccl makes several ops of a gather whose sizes differ.
BATCH_OF = {"ALLGATHER_coalesced": "all_gather", "REDUCE_SCATTER_coalesced": "reduce_scatter"}
DTYPES = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Short": ("int16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
}
_PEERS = re.compile(r"(\d+)(?:->|<-)(\d+|\?)")


@dataclass(frozen=True)
class OpName:
    """What the name of an op says: such as `nccl:send 0->1`, by ranks of the group. In `gloo:recv 0<-?` the sender is
    not known."""

    backend: str
    op: str
    text: str  # the op, as the backend calls it
    peer: int
    number: int
    is_p2p: bool

    @classmethod
    def parse(cls, name: str) -> "OpName":
        backend, _, rest = name.partition(":")
        op, _, peers = rest.partition(" ")
        found = _PEERS.match(peers)
        ours = _OP.get(op, UNKNOWN)
        return cls(
            backend,
            ours,
            op,
            peer=int(found[2]) if found and found[2] != "?" else -1,
            number=ring_format.OP.get(ours, 0),
            is_p2p=ours in ("send", "recv"),
        )
