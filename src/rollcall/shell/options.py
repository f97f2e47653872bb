"""Which ranks a prompt or a notebook starts, and the arguments of `rollcall run` for them."""

from dataclasses import dataclass

from rollcall.errors import UsageError

MOST_RANKS = 64  # more would not fit a screen
WAITING = "line = next_line()  # this rank is done with its line, and waits at the prompt\n"
_RANKS = 2


@dataclass(frozen=True)
class ShellOptions:
    """What `rollcall shell` or a notebook was asked for."""

    ranks: int | None = None  # per host; None: as many as the hosts say, or two
    hang_after_s: float = 10.0
    preload: tuple[str, ...] = ()
    virtual_hosts: int | None = None
    hosts: str = ""
    hostfile: str = ""
    python: str = ""  # on the hosts

    def check(self) -> None:
        """Refuse what cannot work. How many ranks there are on hosts is known when they have started."""
        if self.hang_after_s <= 0:
            raise UsageError(f"--hang-after {self.hang_after_s:g} is not a time to wait: use seconds, such as 10")
        check_size((_RANKS if self.ranks is None else self.ranks) * (self.virtual_hosts or 1))

    def arguments(self) -> list[str]:
        """Options of `rollcall run`."""
        are_named = bool(self.hosts or self.hostfile)
        ranks = self.ranks if are_named or self.ranks is not None else _RANKS
        given = {
            "-n": ranks,
            "--virtual-hosts": self.virtual_hosts,
            "--hosts": self.hosts,
            "--hostfile": self.hostfile,
            "--python": self.python,
        }
        arguments = ["--start", "warm", "--hang-after", str(self.hang_after_s)]
        arguments += [
            argument for name, value in given.items() if value not in (None, "") for argument in (name, str(value))
        ]
        return arguments + [argument for module in self.preload for argument in ("--preload", module)]


def check_size(world_size: int) -> None:
    if not 1 <= world_size <= MOST_RANKS:
        raise UsageError(f"a shell on {world_size} ranks is not possible: use 1 to {MOST_RANKS}")
