"""Limits how often something is done to a share of a core."""

import time


class RateLimit:
    def __init__(self, share: float, least_s: float) -> None:
        self._share, self._least_s = share, least_s
        self._due_s = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until it may be done again."""
        return max(self._due_s - time.monotonic(), 0.0)

    def add(self, cpu_s: float) -> None:
        """Note that it was done at this cost. Costs of requests at the same time add up."""
        now_s = time.monotonic()
        self._due_s = max(now_s + self._least_s, max(now_s, self._due_s) + cpu_s / self._share)
