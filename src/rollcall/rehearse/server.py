"""The process that ranks are forked from: it has the pretended device, and has imported torch.

Run as `python -m rollcall.rehearse.server LIBRARY SOCKET`.
"""

import gc
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollcall.linux import prctl
from rollcall.rehearse.rank import device


def main() -> None:
    library, fd = sys.argv[1:]
    device.load(Path(library))
    prctl.become_subreaper()
    gc.disable()
    with _without_expected_warnings():
        import torch  # not before the library

        device.after_import()
        import torch._decomp
        import torch._dynamo  # FakeTensorMode imports it, and it fails with our torch.cuda
        import torch._meta_registrations
        import torch.distributed.fsdp
        import torch.distributed.tensor  # here, once for all ranks

        from rollcall.record import recorder
        from rollcall.rehearse.rank import collectives, patches
        from rollcall.rehearse.rank import main as rank
        from rollcall.worker.fork_server import serve

    patches.find_jit_builtin(torch.full)  # makes the table of all of torch's functions, once for all ranks
    collectives.note_reduce_ops()
    recorder.prepare()
    serve(socket.socket(fileno=int(fd)), rank.become)


# Warnings of a torch that is built for CUDA: it finds our device in place of its own, and no GPU.
_EXPECTED = (b"Higher priority item already registered", b"No CUDA runtime is found")


@contextmanager
def _without_expected_warnings() -> Iterator[None]:
    """C++ prints some of them, so that only the descriptor can be redirected. Anything else is printed afterwards."""
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            said.seek(0)
            for line in said:
                if not any(each in line for each in _EXPECTED):
                    os.write(2, line)


if __name__ == "__main__":
    main()
