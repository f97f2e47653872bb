"""Programs that are compared take turns: each runs a short block, then the next one does.

The speed of a machine changes from minute to minute. Times measured seconds apart can be compared to a tenth of a
percent, those measured minutes apart not to five percent.
"""

import socket
import time
from collections.abc import Callable, Sequence
from typing import Self

HOST = "127.0.0.1"
_LOOK_S = 0.5


class Player:
    """One of the programs, seen from the measuring process."""

    def __init__(self, patience_s: float) -> None:
        self._listening = socket.create_server((HOST, 0))
        self._listening.settimeout(_LOOK_S)
        self._patience_s = patience_s
        self._lines: socket.SocketIO | None = None
        self.is_there: Callable[[], bool] = lambda: True  # whether the program runs
        self.is_out = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        if self._lines is not None:
            self._lines.close()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def play(self) -> float | None:
        """Let the program run a block; what it measured, or None if it has ended or does not answer."""
        if self.is_out:
            return None
        try:
            return self._play()
        except OSError:
            self.is_out = True
            return None

    def _play(self) -> float:
        if self._lines is None:
            with self._accept() as connection:
                connection.settimeout(self._patience_s)
                self._lines = connection.makefile("rwb", buffering=0)
        self._lines.write(b"go\n")
        answer = self._lines.readline()
        if not answer:
            raise ConnectionError("the program has ended")
        return float(answer)

    def _accept(self) -> socket.socket:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return self._listening.accept()[0]
            except TimeoutError:
                if time.monotonic() > deadline or not self.is_there():
                    raise


def take_turns(players: Sequence[Player], blocks: int) -> list[list[float | None]]:
    """What each program has measured, by block. Each is the first equally often."""
    rounds = []
    for number in range(blocks):
        order = [(number + place) % len(players) for place in range(len(players))]
        found = {place: players[place].play() for place in order}
        rounds.append([found[place] for place in range(len(players))])
    return rounds


def play(port: int, blocks: int, block: Callable[[], float]) -> None:
    """In the program: run a block whenever it is told to, and report what it has measured."""
    with socket.create_connection((HOST, port)) as connection, connection.makefile("rwb", buffering=0) as lines:
        for _ in range(blocks):
            if not lines.readline():
                raise ConnectionError("whoever measures has gone")
            lines.write(f"{block()!r}\n".encode())
