"""The prompt of `rollcall shell`: IPython's editor, history and completion; what is typed runs on the ranks."""

import ast
from pathlib import Path
from typing import Any

from IPython.core.completer import Completer
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.terminal.interactiveshell import TerminalInteractiveShell
from IPython.terminal.prompts import Prompts, Token
from traitlets.config import Config

from rollcall.errors import RollcallError, UsageError, say
from rollcall.protocol.rank_ranges import list_of
from rollcall.shell.ranks import EndedError, Ranks
from rollcall.units import in_seconds

BANNER = """\
{ranks} in one group. Every line runs on all of them; they know rank, world_size, torch and dist.
%rank 2: only there; %rank all: everywhere. %time, %who, %reset, %explain, %stacks, %doc all_reduce.
Ctrl-C cancels a line; Ctrl-D ends.
"""
_EXIT = ("exit", "exit()", "quit", "quit()")
_LOCAL = ("%", "!", "?")  # lines of IPython's own


class RankShell(TerminalInteractiveShell):
    """IPython, but for where a line runs."""

    ranks: Ranks
    run_folder: Path
    chosen: tuple[int, ...]
    line_number = 1  # IPython counts further before it runs a command such as %time
    code = 0  # of the shell, when it ends

    def run_cell(self, raw_cell: str, store_history: bool = False, **_more: Any) -> ExecutionResult:
        cell = raw_cell.strip()
        if not cell:
            return _result(raw_cell)
        if cell in _EXIT:
            self.ask_exit()
            return _result(raw_cell)
        self.line_number = self.execution_count
        if cell.startswith(_LOCAL) or cell.endswith("?"):
            return super().run_cell(_without_question_mark(cell), store_history=store_history)
        if store_history:
            self.history_manager.store_inputs(self.execution_count, cell, raw_cell)
        self.on_ranks(lambda: self.ranks.run(cell, self.chosen, self.line_number))
        self.execution_count += 1
        return _result(raw_cell)

    def on_ranks(self, ask: Any) -> Any:
        """The answer; None, and the end of the prompt, if the ranks have ended."""
        try:
            return ask()
        except EndedError as error:
            say(error)
            self.code = error.exit_code
            self.ask_exit()
        except RollcallError as error:
            say(error)
        return None


def _without_question_mark(cell: str) -> str:
    """`all_reduce?` asks for documentation, as in IPython; names are those of the ranks."""
    return f"%doc {cell.strip('?')}" if "?" in (cell[0], cell[-1]) else cell


def _result(cell: str) -> ExecutionResult:
    return ExecutionResult(ExecutionInfo(cell, False, False, False, None))


@magics_class
class RankMagics(Magics):
    """Commands of the prompt. IPython's own of these names act on the process of the prompt, which has no ranks."""

    shell: RankShell

    @line_magic
    def rank(self, line: str) -> None:
        """%rank 2: run what follows on rank 2 only; %rank 0,2-3; %rank all. %rank 2 x: run x there, once."""
        which, _, code = line.strip().partition(" ")
        try:
            wanted = self.shell.ranks.choose("%rank", which or "all")
        except UsageError as error:
            say(error)
            return
        if code:
            self.shell.on_ranks(lambda: self.shell.ranks.run(code, wanted, self.shell.line_number))
        else:
            self.shell.chosen = wanted

    @line_magic
    def time(self, line: str) -> None:
        """%time x: run x, and say how long it took on the fastest and on the slowest rank."""
        run = self.shell.ranks.run
        took = self.shell.on_ranks(lambda: run(line, self.shell.chosen, self.shell.line_number))
        if took:
            fast, slow = min(took, key=took.__getitem__), max(took, key=took.__getitem__)
            print(f"{in_seconds(took[fast])} on rank {fast} to {in_seconds(took[slow])} on rank {slow}")

    @line_magic
    def who(self, _line: str) -> None:
        """%who: the variables of the ranks, with their types."""
        self.shell.on_ranks(lambda: self.shell.ranks.ask("who", self.shell.chosen))

    @line_magic
    def reset(self, _line: str) -> None:
        """%reset: forget all variables of all ranks. The group stays."""
        self.shell.on_ranks(lambda: self.shell.ranks.ask("reset", list(self.shell.ranks.all)))

    @line_magic
    def doc(self, line: str) -> None:
        """%doc all_reduce: the documentation of something that the ranks know, of torch, or of torch.distributed."""
        self.shell.on_ranks(lambda: self.shell.ranks.ask("doc", [0], name=line.strip()))

    @line_magic
    def explain(self, _line: str) -> None:
        """%explain: what happened on the ranks until now, and who waited for whom."""
        from rollcall.explain.terminal import show  # here: it imports numpy

        self.shell.on_ranks(lambda: show(self.shell.run_folder, None, False))

    @line_magic
    def stacks(self, _line: str) -> None:
        """%stacks: where every rank is. At the prompt, all wait for the next line."""
        from rollcall.live import stacks  # here: the prompt opens faster without it

        self.shell.on_ranks(lambda: print(stacks.in_words(stacks.ask(self.shell.run_folder))))


class RankPrompts(Prompts):
    """`0-3 [1]: `: which ranks run the line, and its number."""

    shell: RankShell

    def in_prompt_tokens(self) -> list[tuple[Any, str]]:
        return [
            (Token.Prompt, f"{list_of(self.shell.chosen)} ["),
            (Token.PromptNum, str(self.shell.execution_count)),
            (Token.Prompt, "]: "),
        ]


def open_prompt(ranks: Ranks, run_folder: Path) -> int:
    """Runs the prompt until Ctrl-D, and returns the exit code."""
    Completer.use_jedi.default_value = False  # it reads the source of modules that this process has not imported
    shell = RankShell.instance(config=_config())
    shell.ranks, shell.run_folder, shell.chosen = ranks, run_folder, tuple(ranks.all)
    shell.register_magics(RankMagics)
    shell.prompts = RankPrompts(shell)
    shell.Completer.custom_matchers.append(lambda text: _completions(ranks, text))
    shell.mainloop()
    code = ranks.end()
    return shell.code or code


def _config() -> Config:
    config = Config()
    config.TerminalInteractiveShell.confirm_exit = False
    config.TerminalInteractiveShell.banner1 = ""
    config.TerminalInteractiveShell.term_title = False
    config.TerminalInteractiveShell.autosuggestions_provider = None
    return config


def _completions(ranks: Ranks, text: str) -> list[str]:
    """Completes names and attributes, but nothing that would have to be computed."""
    try:
        ast.parse(text.rpartition(".")[0] or "x", mode="eval")
        is_name = text.replace(".", "").isidentifier()
        return ranks.complete(text) if is_name else []
    except (SyntaxError, RollcallError):
        return []
