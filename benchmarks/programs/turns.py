"""Programs that are measured against each other take turns: each runs a short block, then the next one does.

A machine is not as fast in one minute as in the next. What runs seconds apart can be compared to a tenth of a percent;
what runs minutes apart cannot be compared to five.
"""

import socket
import time
from collections.abc import Callable, Sequence
from typing import Self

HOST = "127.0.0.1"
_LOOK_S = 0.5


class Player:
    """One program, as the one who measures sees it."""

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
        """Run a block: what it has measured. None from a program that is gone, or does not answer: it is out."""
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
    """Per block: what each player has measured. Each begins as often as the others."""
    rounds = []
    for number in range(blocks):
        order = [(number + place) % len(players) for place in range(len(players))]
        found = {place: players[place].play() for place in order}
        rounds.append([found[place] for place in range(len(players))])
    return rounds


def play(port: int, blocks: int, block: Callable[[], float]) -> None:
    """The program's side: run a block whenever it is our turn, and say what it has measured."""
    with socket.create_connection((HOST, port)) as connection, connection.makefile("rwb", buffering=0) as lines:
        for _ in range(blocks):
            if not lines.readline():
                raise ConnectionError("whoever measures has gone")
            lines.write(f"{block()!r}\n".encode())
