"""The entry point of `torchrun --rdzv-backend rollcall …`: plain torchrun with rollcall's rendezvous.

torch loads this module while it imports its own elastic package. So this module imports nothing of torch before torch
asks for a handler.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

_JOIN_TIMEOUT_S = 600


def torchrun_handler() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """What the entry point returns: a function that makes a handler."""
    return _create


def _create(params: "RendezvousParameters") -> "RendezvousHandler":
    from rollcall.agent.rendezvous.store import StoreRendezvous

    addr, _, port = params.endpoint.rpartition(":")
    return StoreRendezvous(
        nnodes=params.max_nodes,
        node_rank=params.get_as_int("rank"),
        slots=0,
        addr=addr or None,
        port=int(port or 0),
        run_id=params.run_id,
        timeout_s=float(params.get_as_int("timeout") or _JOIN_TIMEOUT_S),
    )
