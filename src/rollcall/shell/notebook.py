"""`%load_ext rollcall` in a notebook: `%%ranks 4` cells run on ranks, which keep their variables from cell to cell."""

import atexit
import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError as MagicUsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from rollcall.errors import RankError, RollcallError, UsageError
from rollcall.protocol.rank_ranges import list_of, ranks_in_words
from rollcall.shell import ranks as shell_ranks
from rollcall.shell.notebook_output import PLAIN
from rollcall.shell.options import ShellOptions


class CellError(RankError):
    """A cell failed on some ranks. A notebook shows their tracebacks, not that of the magic command."""

    def __init__(self, tracebacks: dict[int, str]) -> None:
        self.tracebacks = tracebacks
        self._alike: dict[str, list[int]] = {}
        for rank, text in tracebacks.items():
            self._alike.setdefault(text.rstrip(), []).append(rank)
        text, ranks = next(iter(self._alike.items()))
        super().__init__(f"{text.splitlines()[-1]} (on {ranks_in_words(ranks)})")

    def _render_traceback_(self) -> list[str]:
        return [f"on {ranks_in_words(ranks)}:\n{text}" for text, ranks in self._alike.items()]


class NotebookRanks(shell_ranks.Ranks):
    """Ranks whose pictures are shown in the notebook, and whose errors are errors of the cell."""

    def _show_displays(self, asked: list[shell_ranks.RankConnection]) -> None:
        """Equal ones once, with their ranks."""
        for place in range(max((len(rank.displays) for rank in asked), default=0)):
            alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
            for rank in asked:
                if place < len(rank.displays):
                    alike.setdefault(tuple(rank.displays[place].items()), []).append(rank.number)
            for bundle, numbers in alike.items():
                print(f"{list_of(numbers)} │ {dict(bundle)[PLAIN].splitlines()[0]}")
                display(dict(bundle), raw=True)

    def _show_errors(self, asked: list[shell_ranks.RankConnection]) -> None:
        failed = {rank.number: rank.errors for rank in asked if rank.errors}
        if failed:
            raise CellError(failed)


@magics_class
class NotebookMagics(Magics):
    """`%%ranks` and `%explain`. Ranks start with the first cell that needs them."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._open = contextlib.ExitStack()
        self._ranks: NotebookRanks | None = None
        self._options = ShellOptions()
        self._folder = Path()
        self._count = 0
        atexit.register(self.stop)

    @magic_arguments()
    @argument("count", nargs="?", type=int, help="Ranks, per host if there are several.")
    @argument("--rank", default="all", help="Run the cell on these ranks only: 2, or 0,2-3.")
    @argument("--virtual-hosts", type=int, help="Run the ranks on so many hosts on this machine.")
    @argument("--hosts", default="", help="Run the ranks on these hosts, reached by ssh: a:2,b:2.")
    @argument("--hang-after", type=float, default=10.0, help="Explain a cell without progress for so many seconds.")
    @argument("--preload", action="append", default=[], help="Import this module once for all ranks.")
    @argument("--stop", action="store_true", help="End the ranks.")
    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """%%ranks 4: run the cell on four ranks, which keep their variables. %ranks --stop: end them."""
        options = parse_argstring(self.ranks, line)
        with _in_one_sentence():
            if options.stop:
                self.stop()
                return
            self._start(options)
            if cell is not None:
                self._run(cell, options.rank)

    @line_magic
    def explain(self, line: str) -> Any:
        """%explain: what happened on the ranks until now. %explain RUN: what happened in a run."""
        from rollcall.explain.frames import explained  # here: it takes a moment, and not every notebook needs it

        with _in_one_sentence():
            named = " ".join(shlex.split(line)) or None
            return explained(named or (self._folder if self._ranks else None))

    def stop(self) -> None:
        """End the ranks; nothing if there are none."""
        if self._ranks is not None:
            self._ranks.end()
        self._ranks = None
        self._open.close()

    def _start(self, options: Any) -> None:
        if self._ranks is not None:
            self._check_same(options, len(self._ranks.all))
            return
        if options.count is None and not options.hosts:
            raise UsageError("there are no ranks yet: say how many, as in %%ranks 4")
        wanted = ShellOptions(
            options.count, options.hang_after, tuple(options.preload), options.virtual_hosts, options.hosts
        )
        wanted.check()
        found, folder = self._open.enter_context(shell_ranks.started(wanted, NotebookRanks, is_notebook=True))
        assert isinstance(found, NotebookRanks)
        self._ranks, self._folder, self._options = found, folder, wanted

    def _check_same(self, options: Any, count: int) -> None:
        """Options of a cell must be those of the ranks that were started; a cell may leave them out."""
        says = options.count, options.virtual_hosts, options.hosts or None
        have = self._options.ranks, self._options.virtual_hosts, self._options.hosts
        if any(value not in (None, its) for value, its in zip(says, have, strict=True)):
            raise UsageError(
                f"this notebook has {count} ranks already: leave the number out to use them,"
                " or end them with `%ranks --stop`"
            )

    def _run(self, cell: str, which: str) -> None:
        assert self._ranks is not None
        chosen = self._ranks.choose("--rank", which)
        self._count += 1
        try:
            self._ranks.run(cell, chosen, self._count)
        except shell_ranks.EndedError:
            self._ranks = None
            self._open.close()
            raise


@contextlib.contextmanager
def _in_one_sentence() -> Iterator[None]:
    """A notebook shows the sentence alone, without a traceback of this file."""
    try:
        yield
    except CellError:
        raise
    except RollcallError as error:
        raise MagicUsageError(str(error)) from None


_magics: list[NotebookMagics] = []  # of this process: a notebook has one kernel


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext rollcall`."""
    if not _magics:
        _magics.append(NotebookMagics(shell))
    shell.register_magics(_magics[0])


def unload_ipython_extension(_shell: Any) -> None:
    """Called by `%unload_ext rollcall`: ends the ranks."""
    while _magics:
        _magics.pop().stop()
