"""Which ranks a prompt or a notebook wants, and the words of `rollcall run` for them."""

from dataclasses import dataclass

from rollcall.errors import UsageError

_MOST_RANKS = 64  # more would not fit a screen


@dataclass(frozen=True)
class Wanted:
    ranks: int = 2  # per host
    virtual_hosts: int | None = None
    hang_after_s: float = 10.0
    preload: tuple[str, ...] = ()

    def world_size(self) -> int:
        """How many ranks that is; refuses what cannot work."""
        if self.hang_after_s <= 0:
            raise UsageError(f"--hang-after {self.hang_after_s:g} is not a time to wait: use seconds, such as 10")
        size = self.ranks * (self.virtual_hosts or 1)
        if not 1 <= size <= _MOST_RANKS:
            raise UsageError(f"a shell on {size} ranks is not possible: use 1 to {_MOST_RANKS}")
        return size

    def words(self) -> list[str]:
        """Options of `rollcall run`."""
        words = ["-n", str(self.ranks), "--start", "warm", "--hang-after", str(self.hang_after_s)]
        words += ["--virtual-hosts", str(self.virtual_hosts)] if self.virtual_hosts else []
        return words + [word for module in self.preload for word in ("--preload", module)]
