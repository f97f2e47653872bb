"""Says what happened in a run, from its files alone: nothing here imports torch, or anything that starts ranks.

The data goes through these files in this order:

loading/         reads rings and run.json into one table: a Run
dumps/           makes rings of dumps of torch's Flight Recorder
matching         which ops of different ranks belong together
exchanges        what an all_to_all sends to whom
waits            when an op blocked its rank, until when it waited, and for whom
ends             which ranks ended by themselves, and which because of others
evidence         a run with all that the checks need
source           how two lines of a program relate to each other
skipped_calls    which call one of two ranks has skipped
parallel_groups  what other groups of a mesh did in the same place
effects          what a disagreement between ranks did to the run
findings         a finding, and the words in which it is told
checks/          what to look for, one file per kind of trouble
costs            where the time of communication goes
verdict          the finding that explains the outcome, and what to change
terminal         prints all of it
html             the same as a part of a page
frames           the same as tables, for Python
compare/         what changed between two runs
"""

import os
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollcall.explain.frames import Explained


class _CallableModule(ModuleType):
    """`rollcall.explain(run)` in a program says what `rollcall explain RUN` says in a terminal."""

    def __call__(self, run: "str | os.PathLike[str] | None" = None, attempt: int | None = None) -> "Explained":
        """What happened in a run, by default in the newest: `verdict`, and tables of `findings`, `waits`,
        `communication` and `deaths`. In a notebook it is shown as such.

        rollcall.explain()
        """
        from rollcall.explain.frames import explained  # here: who imports a part of this folder needs no tables

        return explained(run, attempt)


sys.modules[__name__].__class__ = _CallableModule
