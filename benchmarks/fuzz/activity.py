"""Decides whether a world hangs, from what is seen of its ranks ten times a second."""

from dataclasses import dataclass

_STILL_S = 0.5
_STILL_LOOKS = 5  # in a row: where looks come late, the machine is busy, and the ranks get no time either
_BUSY_S = 4.0  # a rank of a healthy program computes for less between two ops, also on a busy machine
_MOST_S = 40.0
_IDLE_TICKS = 3  # of 10 ms, of all ranks between two looks: the recorder's sampler and gloo's threads take as much


@dataclass(frozen=True)
class Look:
    """What is seen of a world at one moment."""

    at_s: float
    ops: object  # the newest ops of all rings, and which ranks run
    cpu_ticks: int  # of all ranks
    is_runnable: bool  # a rank wants the CPU, even if it does not get it
    is_waiting: bool = True  # a rank is blocked in an op; else the ranks may be about to end


class Activity:
    """A world hangs if no op begins or ends and no rank computes; a rank that computes is given some seconds more."""

    def __init__(self, began_s: float) -> None:
        self._began_s = self._op_s = self._cpu_s = began_s
        self._still_looks = 0
        self._last: Look | None = None

    def hangs(self, look: Look) -> bool:
        last, self._last = self._last, look
        self._still_looks += 1
        if last is None or look.ops != last.ops:
            self._op_s = self._cpu_s = look.at_s
            self._still_looks = 0
        elif look.is_runnable or not look.is_waiting or look.cpu_ticks - last.cpu_ticks > _IDLE_TICKS:
            self._cpu_s = look.at_s
            self._still_looks = 0
        stands_still = look.at_s - self._cpu_s >= _STILL_S and self._still_looks >= _STILL_LOOKS
        is_still = stands_still or look.at_s - self._op_s >= _BUSY_S
        return is_still or look.at_s - self._began_s > _MOST_S
