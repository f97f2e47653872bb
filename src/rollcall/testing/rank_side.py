"""A test in a rank: import its module as pytest would, call it, and format a failure as pytest would."""

import io
import json
import os
import pickle
import warnings
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, NoReturn

import _pytest.assertion
import _pytest.config
import _pytest.pathlib
import pytest
from _pytest._code import ExceptionInfo
from _pytest._io import TerminalWriter
from _pytest.outcomes import Skipped, XFailed

from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.worker.traceback_filter import users_part

_config: pytest.Config | None = None


class Argument(Enum):
    """An argument that only a rank can make."""

    WORLD = "the world of the rank"


THE_WORLD = Argument.WORLD


class RankOutcome(Exception):  # noqa: N818  # a skip is no error
    """How a test ended in a rank if it did not pass: failed, skipped or xfailed, with pytest's own text."""

    def __init__(self, kind: str, line: str, text: str = "") -> None:
        super().__init__(kind, line, text)
        self.kind, self.line, self.text = kind, line, text

    def raise_here(self, rank: int, ranks: int, others: list[int]) -> NoReturn:
        if self.kind == "skipped":
            pytest.skip(self.line)
        if self.kind == "xfailed":
            pytest.xfail(self.line)
        more = f"\n{ranks_in_words(others)} failed after it" if others else ""
        pytest.fail(f"rank {rank} of {ranks}: {self.line}{more}\n\n{self.text}", pytrace=False)


@dataclass(frozen=True)
class RankTest:
    """A test function and its pickled arguments, as they are sent to a rank."""

    path: str
    qualname: str
    arguments: dict[str, bytes]

    def run(self, _rank: int) -> None:
        assert _config is not None, "the server has not called prepare()"
        with warnings.catch_warnings(), ExitStack() as stack:
            _pytest.config.apply_warning_filters(
                _config.getini("filterwarnings"), _config.getoption("pythonwarnings") or []
            )
            comparisons = _comparisons(_config)
            next(comparisons)
            try:
                self._function()(**self._load_arguments(stack))
            except (Skipped, XFailed) as outcome:
                raise RankOutcome("skipped" if isinstance(outcome, Skipped) else "xfailed", str(outcome.msg)) from None
            except BaseException as error:
                # Closing the world must not wait for the other ranks: they may be blocked elsewhere.
                raise _format_failure(error, _config) from None

    def _function(self) -> Any:
        assert _config is not None
        module = _pytest.pathlib.import_path(
            self.path,
            mode=_config.getoption("importmode"),
            root=_config.rootpath,
            consider_namespace_packages=_config.getini("consider_namespace_packages"),
        )
        owner: Any = module
        *classes, name = self.qualname.split(".")
        for each in classes:
            owner = getattr(owner, each)()
        return getattr(owner, name)

    def _load_arguments(self, stack: ExitStack) -> dict[str, Any]:
        loaded = {name: pickle.loads(raw) for name, raw in self.arguments.items()}
        if THE_WORLD in loaded.values():
            from rollcall.initialization.process_group import init  # here: most tests make no world

            world = stack.enter_context(init())
            loaded = {name: world if value is THE_WORLD else value for name, value in loaded.items()}
        return loaded


def prepare() -> None:
    """Called once, in the server: reads pytest's settings, and lets it rewrite assert statements on import."""
    global _config
    _config = _pytest.config._prepareconfig(json.loads(os.environ["ROLLCALL_PYTEST_ARGS"]))


def _comparisons(config: pytest.Config) -> Generator[None, object, object]:
    """The details under `assert a == b`, which pytest sets up around each test."""
    item: Any = SimpleNamespace(ihook=config.hook, config=config)
    return _pytest.assertion.pytest_runtest_protocol(item)


def _format_failure(error: BaseException, config: pytest.Config) -> RankOutcome:
    info = ExceptionInfo.from_exception(error.with_traceback(users_part(error.__traceback__) or error.__traceback__))
    style = config.getoption("tbstyle")
    shown = info.getrepr(style="long" if style == "auto" else style, showlocals=config.getoption("showlocals"))
    text = io.StringIO()
    shown.toterminal(TerminalWriter(text))
    return RankOutcome("failed", info.exconly().partition("\n")[0], text.getvalue().rstrip())
