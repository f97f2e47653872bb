"""The flags of a node that is started by hand (those of torch.distributed.launch): defaults, and which are refused."""

from dataclasses import dataclass, replace
from typing import Any

from rollcall.errors import UsageError
from rollcall.initialization.environment import RankAssignment
from rollcall.initialization.process_group import read_method
from rollcall.protocol.plan import DEFAULT_PORT
from rollcall.protocol.torchrun_env import rank_env

_DEFAULTS = {
    "master_addr": "localhost",
    "master_port": DEFAULT_PORT,
    "nnodes": 1,
    "node_rank": 0,
    "init_method": "env://",
}


@dataclass(frozen=True)
class Node:
    """All flags of a node."""

    master_addr: str
    master_port: int
    nnodes: int
    nproc_per_node: int
    node_rank: int
    world_size: int
    backend: str | None
    init_method: str

    @classmethod
    def of(cls, flags: dict[str, Any], ranks: int | None, backend: str | None) -> "Node":
        """The given flags, those that follow from them, and defaults for the rest."""
        chosen = {**_DEFAULTS, **{name: value for name, value in flags.items() if value is not None}}
        if ranks is not None and chosen.setdefault("nproc_per_node", ranks) != ranks:
            raise UsageError(f"-n {ranks} and --nproc_per_node {chosen['nproc_per_node']} differ: use one of them")
        nnodes = chosen["nnodes"]
        if nnodes < 1:
            raise UsageError(f"--nnodes {nnodes} leaves no node to run on: use 1 or more")
        if "nproc_per_node" not in chosen:
            chosen["nproc_per_node"] = max(1, chosen.get("world_size", 4 * nnodes) // nnodes)
        chosen.setdefault("world_size", nnodes * chosen["nproc_per_node"])
        return cls(backend=backend, **chosen).checked()

    def checked(self) -> "Node":
        if self.nproc_per_node < 1:
            raise UsageError(f"--nproc_per_node {self.nproc_per_node} starts nothing: use 1 or more")
        if self.nnodes * self.nproc_per_node != self.world_size:
            raise UsageError(
                f"--world_size {self.world_size} is not {self.nnodes} nodes × {self.nproc_per_node} processes:"
                f" use --world_size {self.nnodes * self.nproc_per_node}, or leave it out"
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise UsageError(
                f"--node_rank {self.node_rank} is not among {self.nnodes} nodes: they are 0 to {self.nnodes - 1}"
            )
        if not 0 < self.master_port < 2**16:
            raise UsageError(f"--master_port {self.master_port} does not exist: use a number from 1 to 65535")
        place = RankAssignment("by hand", 0, 1, master_addr=self.master_addr, master_port=self.master_port)
        method = read_method(self.init_method, place)
        return replace(self, master_addr=method.host, master_port=method.port)

    def at(self, port: int) -> "Node":
        """The same node, with the port that node 0 uses."""
        method = f"tcp://{self.master_addr}:{port}" if self.init_method.startswith("tcp:") else self.init_method
        return replace(self, master_port=port, init_method=method)

    def env(self, local_rank: int) -> dict[str, str]:
        """The variables that torchrun would set for this rank; node 0's own process serves the store."""
        return rank_env(
            rank=self.node_rank * self.nproc_per_node + local_rank,
            world_size=self.world_size,
            local_rank=local_rank,
            local_world_size=self.nproc_per_node,
            node_rank=self.node_rank,
            nnodes=self.nnodes,
            master_addr=self.master_addr,
            master_port=self.master_port,
            run_id=f"nodes-{self.master_port}",
        )
