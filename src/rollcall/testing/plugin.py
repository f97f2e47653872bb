"""The pytest plugin: a test marked with `@pytest.mark.ranks(4)` runs on four ranks.

Fixtures are made once, in this process, and sent to the ranks; `tmp_path` is therefore one folder for all of them.
The fixture `world` is made in each rank: it is what `rollcall.init()` returns.
Other modules of rollcall are imported late, since every pytest in this environment loads the plugin.
"""

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rollcall.functions.pool import FunctionResult, RankPool
    from rollcall.testing.rank_side import Argument

_DEFAULT_TIMEOUT_S = 60.0
_server = pytest.StashKey["RankPool"]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"ranks(n, timeout={_DEFAULT_TIMEOUT_S:g}): run the test on n ranks (rollcall)",
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    if _server in config.stash:
        config.stash[_server].close()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> "Argument":
    """The World of the rank that runs the test."""
    from rollcall.testing.rank_side import THE_WORLD

    if request.node.get_closest_marker("ranks") is None:
        raise pytest.UsageError(f"the fixture `world` needs ranks: mark {request.node.name} with @pytest.mark.ranks(2)")
    return THE_WORLD


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None:
        return None
    ranks, timeout_s = _read_mark(*mark.args, **mark.kwargs)
    _run(pyfuncitem, ranks, timeout_s)
    return True


def _read_mark(n: Any = None, timeout: float = _DEFAULT_TIMEOUT_S, **other: Any) -> tuple[int, float]:
    if not isinstance(n, int) or n < 1 or other:
        raise pytest.UsageError(
            f"@pytest.mark.ranks takes a number of ranks from 1 and a timeout, not {n!r} {other or ''}"
        )
    return n, float(timeout)


def _run(item: pytest.Function, ranks: int, timeout_s: float) -> None:
    from rollcall.testing.rank_side import RankTest

    test = RankTest(
        path=str(item.path),
        qualname=item.obj.__qualname__,
        arguments={name: _pickled(name, item.funcargs[name]) for name in item._fixtureinfo.argnames},
    )
    results = _server_of(item.config).call(test.run, ranks, timeout_s=timeout_s, capture=True)
    for result in results:
        if result.output:
            item.add_report_section("call", f"rank {result.rank}", result.output)
    _report(results, timeout_s)


def _pickled(name: str, value: Any) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        pytest.fail(
            f"the fixture {name!r} cannot be sent to the ranks ({type(error).__name__}: {error}):"
            f" make it inside the test",
            pytrace=False,
        )


def _server_of(config: pytest.Config) -> "RankPool":
    from rollcall.functions.pool import RankPool

    if _server not in config.stash:
        config.stash[_server] = RankPool(
            preload=("rollcall.testing.rank_side:prepare",),
            env={"ROLLCALL_PYTEST_ARGS": json.dumps(_arguments(config))},
        )
    return config.stash[_server]


def _arguments(config: pytest.Config) -> list[str]:
    """The command line that gives a rank the same settings as this process."""
    arguments = [
        f"--rootdir={config.rootpath}",
        f"--import-mode={config.getoption('importmode')}",
        f"--tb={config.getoption('tbstyle')}",
    ]
    arguments += ["-c", str(config.inipath)] if config.inipath else []
    arguments += ["-v"] * max(0, config.get_verbosity())
    arguments += ["--showlocals"] * bool(config.getoption("showlocals"))
    arguments += [f"-W{each}" for each in config.getoption("pythonwarnings") or []]
    # In the server Python has imported this plugin before pytest could rewrite it, which is harmless.
    arguments += ["-Wignore::pytest.PytestAssertRewriteWarning"]
    return arguments


def _report(results: list["FunctionResult"], timeout_s: float) -> None:
    """Turn what happened in the ranks into the outcome of this test."""
    from rollcall.functions.api import stacks
    from rollcall.protocol.first_failure import first_of
    from rollcall.testing.rank_side import RankOutcome

    first = first_of([result for result in results if result.failed])
    if first is not None:
        outcome = first.error
        if isinstance(outcome, RankOutcome):
            outcome.raise_here(first.rank, len(results), [a.rank for a in results if a.failed and a is not first])
        pytest.fail(f"{outcome}", pytrace=False)
    hung = [result for result in results if result.exit_code is None]
    if hung:
        pytest.fail(
            f"{len(hung)} of {len(results)} ranks were still running after {timeout_s:g} s;"
            f" their stacks:\n\n{stacks(hung)}",
            pytrace=False,
        )
