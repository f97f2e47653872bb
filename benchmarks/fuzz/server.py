"""python -m benchmarks.fuzz.server SOCKET: has imported what programs need, and forks their ranks on request."""

import importlib
import socket
import sys

from rollcall.compat import torch_dns
from rollcall.linux import prctl, process_title
from rollcall.record import recorder
from rollcall.worker import fork_server
from rollcall.worker import main as worker_main

_MODULES = (
    "torch._dynamo",
    "torch.distributed._functional_collectives",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.nn.functional",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.data.distributed",
)


def main() -> None:
    prctl.become_subreaper()
    for name in _MODULES:
        importlib.import_module(name)
    recorder.prepare()
    torch_dns.have_torch_give_up()
    process_title.find()
    fork_server.serve(socket.socket(fileno=int(sys.argv[1])), worker_main.run_request)


if __name__ == "__main__":
    main()
