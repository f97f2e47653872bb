"""Programs that poll a handle, or wait for its future, and not for the handle itself."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from rollcall.record.hooks import sink, works


class FakeSink:
    """A sink that only keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_drop(self, mark: int) -> Callable[[object], object]:
        return id

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *marks: self.calls.append(name)


@pytest.mark.parametrize("has_failed", [True, False])
def test_an_op_whose_future_failed_has_failed(has_failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be recorded as completed, and the error would seem to be its rank's own."""
    fake = FakeSink()
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    monkeypatch.setattr(sink, "current", fake)
    works._after_get_future((7, 1), future)
    if has_failed:
        future.set_exception(RuntimeError("Connection closed by peer"))
    else:
        future.set_result([torch.ones(3)])
    assert fake.calls == ["waiting", "failed" if has_failed else "completed"]


def test_a_handle_that_is_not_complete_yet_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the answer that it is complete counts as a wait."""
    fake, work = FakeSink(), dist.Work()
    monkeypatch.setattr(sink, "current", fake)
    works.keep(work, (7, 1))
    works._after_poll(id(work), False)
    assert (fake.calls, id(work) in works.unwaited) == ([], True)
    works._after_poll(id(work), True)
    assert (fake.calls, id(work) in works.unwaited) == (["polled"], False)
