"""Asks NCCL's RAS service, which runs in the ranks from NCCL 2.24 on, about a run that makes no progress."""

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

_ADDRESS = "localhost:28028"  # unless NCCL_RAS_ADDR says otherwise
_ANSWER_S = 8.0  # it waits 5 s for ranks that do not answer
_MOST_BYTES = 1 << 20  # of an answer: it has some lines per rank that differs


def ask(file: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Write its answer to this file. Nothing is written where nobody listens."""
    host, _, port = environ.get("NCCL_RAS_ADDR", _ADDRESS).rpartition(":")
    with contextlib.suppress(OSError, ValueError):
        answer = _answer(host or "localhost", int(port))
        if answer.strip():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(answer)


def _answer(host: str, port: int) -> bytes:
    """It closes the connection behind its answer."""
    answer, deadline = b"", time.monotonic() + _ANSWER_S
    with socket.create_connection((host, port), timeout=1.0) as connection:
        connection.sendall(b"VERBOSE STATUS\n")
        while len(answer) < _MOST_BYTES and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                part = connection.recv(1 << 16)
            except TimeoutError:
                break
            if not part:
                break
            answer += part
    return answer
