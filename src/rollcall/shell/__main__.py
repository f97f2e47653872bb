"""The program of the ranks of `rollcall shell`: connects to the prompt, makes the group, and runs what is typed."""

import os
import sys
from datetime import timedelta

from torch.distributed import TCPStore

from rollcall.shell.session import Session
from rollcall.worker import agent_connection

_STORE_S = 60.0


def main() -> None:
    link = agent_connection.connect("prompt")
    # The agent serves the store, and so no rank does.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_STORE_S))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    Session(link, rank, size, store, sys.argv[1], is_notebook="notebook" in sys.argv[2:]).serve()


main()
