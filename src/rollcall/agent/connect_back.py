"""The agent's side of connecting back to the launcher: both prove that they know the run's secret."""

import os
import socket
from collections.abc import MutableMapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from rollcall.protocol.connect_back import ADDRESSES, NAME_FROM, SECRET, TIMEOUT_S, set_timeout


def connect(environ: MutableMapping[str, str]) -> int:
    """A connection to the launcher, as a file. OSError where none answers."""
    secret = environ.pop(SECRET, "")
    name = environ.get(environ.pop(NAME_FROM, ""), "") or socket.gethostname()
    errors = []
    for endpoint in environ.pop(ADDRESSES).split(","):
        address, _, port = endpoint.partition(" ")
        try:
            caller = socket.create_connection((address, int(port)), timeout=TIMEOUT_S)
            caller.settimeout(None)
            set_timeout(caller, TIMEOUT_S)
            connection = Connection(caller.detach())
            answer_challenge(connection, secret.encode())
            deliver_challenge(connection, secret.encode())
        except (OSError, EOFError, AuthenticationError) as error:
            errors.append(f"{address}: {error}")
            continue
        connection.send_bytes(name.encode())
        fd = os.dup(connection.fileno())
        connection.close()
        with socket.socket(fileno=os.dup(fd)) as kept:
            set_timeout(kept, 0)
        return fd
    raise OSError(f"cannot reach the launcher ({'; '.join(errors)})")
