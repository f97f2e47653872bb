"""Real runs, their pages, and a real Chromium that opens them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rollcall_command import Runner
from tests.warm import WarmRunner

CHROMIUM = shutil.which("chromium")
# A silent mistake, a rank that is late, ops of all sorts, and output that would do harm if it were executed.
PROGRAM = """\
import time
import torch, torch.distributed as dist
import rollcall

def late(world):
    time.sleep(0.03 if world.rank == 2 else 0.001)

def worst(world, loss):
    dist.all_reduce(loss, op=dist.ReduceOp.MAX if world.rank == 2 else dist.ReduceOp.SUM)

def step_with_a_strange_name(world, gradient):
    late(world)
    dist.all_reduce(gradient)

with rollcall.init() as world:
    gradient = torch.ones(1000)
    for step in range(12):
        step_with_a_strange_name(world, gradient)
        print(f"step {step} of rank {world.rank}", flush=True)
    worst(world, torch.ones(1))
    if world.rank == 0:
        dist.send(gradient, 1)
    elif world.rank == 1:
        dist.recv(gradient, 0)
    work = dist.all_reduce(gradient, async_op=True)
    time.sleep(0.01)
    work.wait()
    if world.rank == 1:
        print("<img src=x onerror='window.harm=1'></script><script>window.harm=1</script>")
        print("\\x1b[31mneedle\\x1b[0m in the hay \\x1b]0;title\\x07")
        print("x" * 1_000_000)
    dist.barrier()
"""

# Its first attempt ends with a rank that is killed, its second with one that fails.
RESTARTED = """\
import os, rollcall, threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        os.kill(os.getpid(), 9)
    dist.barrier()
side = dist.new_group([0, 1, 2])

def count(t):
    for _ in range(5):
        dist.all_reduce(t, group=side)

other = threading.Thread(target=count, args=(torch.ones(2),))
other.start()
dist.barrier()
for step in range(3):
    t = torch.ones(1000)
    handle = dist.all_reduce(t, async_op=True)
    with rollcall.phase("load"):
        if rank == 1 and step == 0:
            time.sleep(0.2)
    if rank == 0:
        dist.send(torch.ones(4), dst=1, tag=7)
    if rank == 1:
        dist.recv(torch.ones(4), src=0, tag=7)
    handle.wait()
    dist.barrier()
    dist.broadcast(t, src=2)
other.join()
if rank == 2:
    raise ValueError("out of data")
dist.barrier()
"""


@pytest.fixture(scope="session")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """One run of three ranks and two attempts."""
    runner = WarmRunner(tmp_path_factory.mktemp("restarted"))
    runner.script(RESTARTED)
    assert runner("run", "-n", 3, "--max-restarts", 1, "script.py").code == 1
    return runner


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """One run of three ranks for all tests, with its report."""
    runner = WarmRunner(tmp_path_factory.mktemp("report"))
    runner.script(PROGRAM, "train.py")
    found = runner("run", "-n", 3, "--report", "train.py")
    assert found.code == 0, found.err
    assert "the report is " in found.err
    return runner


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class OpenedPage:
    """A page in Chromium, with its warnings and requests."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1400, "height": 900}, **options)
        self.warnings: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.warnings.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.warnings.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_function("window.rollcall && rollcall.isReady")

    def ask(self, script: str, given: Any = None) -> Any:
        return self.page.evaluate(script, given)

    def frame(self) -> None:
        """Wait until what was changed is painted."""
        self.ask("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def place_of(self, op: int, lane: int) -> tuple[float, float]:
        """Where on the screen an op is."""
        x, y = self.ask(
            """([op, lane]) => {
                const t = rollcall.timeline, view = Bokeh.index.find_one(t.plot), box = t.box();
                const middle = t.start[op] + (t.wait[op] + t.busy[op]) / 2;
                return [box.left + view.frame.x_scale.compute(middle), box.top + view.frame.y_scale.compute(lane)];
            }""",
            [op, lane],
        )
        return x, y


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens pages; closes them at the end."""
    opened: list[OpenedPage] = []

    def opener(where: Path | str, **options: Any) -> OpenedPage:
        opened.append(OpenedPage(browser, where if isinstance(where, str) else where.as_uri(), **options))
        return opened[-1]

    yield opener
    for each in opened:
        each.page.close()
