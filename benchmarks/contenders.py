"""The launchers that are compared, and the command with which each starts a program on N ranks of this machine."""

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path

HERE = Path(sys.executable).parent
REPOSITORY = Path(__file__).resolve().parent.parent
PEERS = REPOSITORY / ".venv-peers"
PROGRAMS = REPOSITORY / "benchmarks" / "programs"


@dataclass(frozen=True, eq=False)
class Contender:
    """A launcher. `options` returns its command line for N ranks, up to the program's name."""

    name: str
    executable: Path
    options: Callable[[int], list[str]]
    most_ranks: int = 1000
    env: dict[str, str] = field(default_factory=dict)

    def command(self, ranks: int, program: str, *more: str) -> list[str]:
        return [str(self.executable), *self.options(ranks), *more, str(PROGRAMS / program)]

    @property
    def is_here(self) -> bool:
        return self.executable.exists()


TORCHRUN = Contender("torchrun", HERE / "torchrun", lambda n: ["--standalone", f"--nproc-per-node={n}"])
# Restarted ranks of torchrun find the addresses of the previous attempt in the store, and fail or hang. With this
# switch each attempt has its own store.
TORCHRUN_UNSHARED = replace(
    TORCHRUN, name="torchrun, store not shared", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
)
ROLLCALL = Contender("rollcall run", HERE / "rollcall", lambda n: ["run", "-n", str(n)])
# --multi_gpu is accelerate's only way to start several processes on one machine; it uses no GPU before the
# program does. (Its --cpu starts one process, or goes through mpirun.)
ACCELERATE = Contender(
    "accelerate launch",
    PEERS / "bin" / "accelerate",
    lambda n: [
        *("launch", "--multi_gpu", f"--num_processes={n}", "--num_machines=1", "--main_process_port=0"),
        *("--mixed_precision=no", "--dynamo_backend=no"),
    ],
    most_ranks=16,
)
FABRIC = Contender(
    "fabric run",
    PEERS / "bin" / "fabric",
    lambda n: ["run", "--accelerator=cpu", f"--devices={n}", f"--main-port={_port()}"],
    most_ranks=16,
)
ALL = (TORCHRUN, ACCELERATE, FABRIC, ROLLCALL)


def peer_versions() -> dict[str, str]:
    """Versions of the packages in the separate environment."""
    site = [str(path) for path in PEERS.glob("lib/python*/site-packages")]
    found = {each.name: each.version for each in distributions(path=site)} if site else {}
    return {name: found[name] for name in ("accelerate", "lightning", "torchrunx") if name in found}


def _port() -> int:
    """A port that was free a moment ago: fabric takes no listening socket, and its default port may be in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
