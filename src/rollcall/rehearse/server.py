"""The process that ranks are forked from: it has the pretended device, and has imported torch.

Run as `python -m rollcall.rehearse.server LIBRARY SOCKET`.
"""

import gc
import socket
import sys
from pathlib import Path

from rollcall.linux import prctl
from rollcall.rehearse.rank import device


def main() -> None:
    library, fd = sys.argv[1:]
    device.load(Path(library))
    prctl.become_subreaper()
    gc.disable()
    import torch  # not before the library

    device.after_import()
    import torch._decomp
    import torch._dynamo  # FakeTensorMode imports it, and it does not like our torch.cuda
    import torch._meta_registrations
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401  (here, once for all ranks)

    from rollcall.record import recorder
    from rollcall.rehearse.rank import collectives
    from rollcall.rehearse.rank import main as rank
    from rollcall.worker.fork_server import serve

    collectives.note_reduce_ops()
    recorder.prepare()
    serve(socket.socket(fileno=int(fd)), rank.become)


if __name__ == "__main__":
    main()
