"""Real ranks, from a server that has imported once what every training needs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollcall.functions import bound, raise_first
from rollcall.launch.calls import CallServer
from tests.launch.conftest import rollcall  # noqa: F401


class Warm:
    """As `rollcall.spawn`; and keeps what the ranks said."""

    def __init__(self, server: CallServer) -> None:
        self._server = server
        self.said = ""

    def __call__(self, fn: Callable[..., Any], ranks: int) -> list[Any]:
        answers = self._server.call(bound(fn, ()), ranks, timeout_s=60, capture=True)
        self.said = "".join(answer.output for answer in answers)
        print(self.said)
        raise_first(answers, 60)
        return [answer.value for answer in answers]


@pytest.fixture(scope="session")
def _server() -> Iterator[CallServer]:
    server = CallServer(preload=("torch._dynamo", "tests.train.small"))
    yield server
    server.close()


@pytest.fixture
def ranks(_server: CallServer) -> Warm:
    return Warm(_server)
