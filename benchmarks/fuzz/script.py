"""The text of a generated program, and what is known of each of its calls."""

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

INDENT = "    "


@dataclass(frozen=True)
class Slot:
    """A place in the text of a call: what stands there, and what a mutation writes instead, by the kind of bug."""

    right: str
    wrong: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loop:
    """The loop that a line is in: its variable and its number of turns."""

    variable: str
    turns: int


@dataclass(frozen=True)
class Call:
    """What a mutation has to know of a line that communicates."""

    sort: str  # collective, p2p, wait, group, init, data, or framework: a line whose arguments are not known
    ranks: tuple[int, ...]  # those that come to this line
    groups: tuple[tuple[int, ...], ...]  # those that make the call together
    slots: Mapping[str, Slot] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)  # whole other texts, by the kind of bug
    partners: Mapping[int, int] = field(default_factory=dict)  # of a send or receive: the other side, by rank
    loop: Loop | None = None
    name: str = ""
    related: tuple[str, ...] = ()  # names of calls whose line is a right answer, too
    buffer: str = ""  # of a wait: the tensor that must not change before
    is_async: bool = False
    has_forward: bool = False  # in a loop that calls a DDP module
    is_needed: bool = False  # later lines fail on a rank that leaves it out

    def group_of(self, rank: int) -> tuple[int, ...]:
        return next((group for group in self.groups if rank in group), self.ranks)


@dataclass(frozen=True)
class Line:
    """One line. Slots stand as <name> in its text."""

    depth: int
    text: str
    call: Call | None = None
    is_guilty: bool = False

    def render(self) -> str:
        text = self.text
        for name, slot in self.call.slots.items() if self.call else ():
            text = text.replace(f"<{name}>", slot.right)
        return INDENT * self.depth + text if text else ""


@dataclass(frozen=True)
class Script:
    seed: int
    world_size: int
    parts: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join(line.render() for line in self.lines) + "\n"

    def guilty_lines(self) -> frozenset[int]:
        return frozenset(number for number, line in enumerate(self.lines, 1) if line.is_guilty)

    def calls(self) -> Iterator[tuple[int, Line, Call]]:
        """The calls, with the places of their lines."""
        for place, line in enumerate(self.lines):
            if line.call is not None:
                yield place, line, line.call


class Writer:
    """Writes a script line by line. Parts of programs get one, and need not know of each other."""

    def __init__(self, rng: random.Random, world_size: int) -> None:
        self.rng, self.world_size = rng, world_size
        self.everyone = tuple(range(world_size))
        self.helpers: list[Line] = []
        self.body: list[Line] = []
        self._into = self.body
        self._depth = 0
        self._ranks = self.everyone
        self._loop: Loop | None = None
        self._has_forward = False
        self._names: Counter[str] = Counter()

    def name(self, *choices: str) -> str:
        """A name that the script does not have yet."""
        chosen = self.rng.choice(choices)
        self._names[chosen] += 1
        return chosen if self._names[chosen] == 1 else f"{chosen}_{self._names[chosen]}"

    def size(self, least: int = 3, most: int = 9) -> int:
        return self.rng.randint(least, most)

    def line(self, text: str = "") -> None:
        self._into.append(Line(self._depth, text))

    def call(
        self, text: str, sort: str = "collective", slots: Mapping[str, Slot] | None = None, **known: object
    ) -> None:
        """A line that communicates; `known` are fields of Call."""
        groups = known.pop("groups", (self.everyone,))
        ranks = known.pop("ranks", self._ranks)
        call = Call(sort, ranks, groups, slots or {}, loop=self._loop, has_forward=self._has_forward)  # type: ignore[arg-type]
        self._into.append(Line(self._depth, text, replace(call, **known)))  # type: ignore[arg-type]

    @contextlib.contextmanager
    def block(self, header: str, ranks: tuple[int, ...] | None = None) -> Iterator[None]:
        """Indented lines, to which only these ranks come."""
        before = self._ranks
        self.line(header)
        self._ranks, self._depth = before if ranks is None else ranks, self._depth + 1
        yield
        self._ranks, self._depth = before, self._depth - 1

    @contextlib.contextmanager
    def loop(self, variable: str, turns: int, has_forward: bool = False, reached: int | None = None) -> Iterator[None]:
        """A loop of so many turns, of which the program may reach only the first ones."""
        before = self._loop, self._has_forward
        self._loop, self._has_forward = Loop(variable, reached or turns), has_forward or self._has_forward
        with self.block(f"for {variable} in range({turns}):"):
            yield
        self._loop, self._has_forward = before

    @contextlib.contextmanager
    def body_of(self, loop: Loop, has_forward: bool = False) -> Iterator[None]:
        """The lines of a loop whose header is a call."""
        before = self._loop, self._has_forward
        self._loop, self._has_forward, self._depth = loop, has_forward, self._depth + 1
        yield
        (self._loop, self._has_forward), self._depth = before, self._depth - 1

    @contextlib.contextmanager
    def helper(self, header: str) -> Iterator[None]:
        """A function or class at the top of the script. It does not know in which loop it is called."""
        before = self._into, self._depth, self._loop, self._ranks, self._has_forward
        self._into, self._depth, self._loop, self._ranks = self.helpers, 0, None, self.everyone
        self._has_forward = False
        with self.block(header):
            yield
        self._into, self._depth, self._loop, self._ranks, self._has_forward = before
        self.helpers += [Line(0, ""), Line(0, "")]
