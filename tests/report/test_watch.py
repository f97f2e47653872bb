"""`rollcall watch`: a run while it goes on, in a real terminal (tmux) and in a real browser."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rollcall.errors import UsageError
from rollcall.report.live import LiveRun
from rollcall.report.now import Observer
from rollcall.report.web import open_server
from tests.launch.conftest import ROLLCALL, Runner, until
from tests.report.conftest import Looked
from tests.report.rings import Made, write

# Rank 1 keeps the others waiting until a file is there.
HELD_UP = """\
import os, time
import torch, torch.distributed as dist
import rollcall

with rollcall.init() as world:
    for step in range(5):
        dist.all_reduce(torch.ones(10))
    while world.rank == 1 and not os.path.exists("go"):
        time.sleep(0.02)
    dist.all_reduce(torch.ones(10))
    for step in range(20):
        dist.barrier()
"""


@pytest.fixture
def held(rollcall: Runner) -> Iterator["subprocess.Popen[str]"]:
    """A run in which ranks 0 and 2 wait for rank 1."""
    rollcall.script(HELD_UP)
    process = rollcall.start("run", "-n", 3, "script.py", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_held() -> bool:
        if not rollcall.latest().exists():
            return False
        run = LiveRun(rollcall.latest().resolve())
        waiting = [each for each in Observer(run).look() if each.state == "waiting" and each.waits_for == (1,)]
        run.close()
        return len(waiting) == 2

    try:
        assert until(is_held, 60)
        yield process
    finally:
        (rollcall.folder / "go").touch()
        process.wait(60)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")
def test_the_terminal_names_who_holds_up(rollcall: Runner, held: "subprocess.Popen[str]") -> None:
    """In a terminal the rank that others wait for stands first, the table goes on in place, and ends with the run."""
    name = f"rollcall-{os.getpid()}"
    env = {name: value for name, value in rollcall.env.items() if name not in ("COLUMNS", "LINES")}
    env["TERM"] = "xterm-256color"
    tmux = ["tmux", "-L", name]
    command = f"{ROLLCALL[0]} watch --every 0.2; echo code $?; sleep 30"
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "140", "-y", "24", command], cwd=rollcall.folder, env=env, check=True
    )

    def screen() -> str:
        return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout

    try:
        assert until(lambda: "2 waiting" in screen(), 30), screen()
        rows = screen().splitlines()
        first, second = rows[4].split(), rows[5].split()
        assert (first[0], first[2]) == ("1", "computing")
        assert second[2:6] == ["waiting", "all_reduce", "at", "script.py:10"]
        before = screen()
        assert until(lambda: screen() != before, 10)  # the time goes on
        assert screen().count("holds up") == 1  # in place
        (rollcall.folder / "go").touch()
        assert until(lambda: "the run is over: ok" in screen(), 30), screen()
        assert until(lambda: "code 0" in screen(), 10), screen()
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def test_one_look_in_a_pipe(rollcall: Runner, held: "subprocess.Popen[str]") -> None:
    """Where nobody can see a table refresh, one look is printed."""
    found = rollcall("watch")
    assert found.code == 0, found.err
    assert "3 ranks: 2 waiting, 1 computing" in found.out
    assert found.out.count("waits for") == 1


def test_ranks_without_a_ring_here(tmp_path: Path) -> None:
    """Ranks without a ring here are told of, too, and all are in the order of who holds up most."""
    ranks = [[Made("all_reduce", 1, 0, 5), *([] if rank == 3 else [Made("all_reduce", 2, 10)])] for rank in range(8)]
    folder = write(tmp_path, ranks)
    (folder / "rings" / "attempt-0" / "rank-5.ring").unlink()
    now = Observer(LiveRun(folder)).look()
    assert [each.rank for each in now[:2]] == [3, 5]
    assert [each.holds_up for each in now[:2]] == [6, 6]
    assert now[1].state == "unseen"
    assert all(each.waits_for == (3, 5) for each in now[2:])


@pytest.fixture
def served(run: Runner) -> Iterator[str]:
    """The URL of a server for the run that is over."""
    server, url = open_server(run.latest().resolve(), 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield url
    server.shutdown()
    thread.join()
    server.server_close()


def _get(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_who_does_not_belong_gets_403(served: str) -> None:
    """Without the token, under another name, from another origin or by another method: 403, and nothing else."""
    token = urlsplit(served).query
    refused = (403, b"403\n")
    for path in ("/", "/?token=", "/?token=wrong", "/news?token=wrong", "/nothing", f"/?{token}x"):
        assert _get(served, path) == refused
    good = f"/news?{token}&since=0"
    assert _get(served, good)[0] == 200
    assert _get(served, good, Host="evil.example") == refused
    assert _get(served, good, Host="evil.example:80") == refused
    assert _get(served, good, Origin="http://evil.example") == refused
    assert _get(served, good, Origin="null") == refused
    assert _get(served, good, method="POST") == refused
    netloc = urlsplit(served).netloc
    assert _get(served, good, Origin=f"http://{netloc}")[0] == 200
    assert _get(served, good, Host="localhost:9999")[0] == 200  # the other end of an ssh tunnel
    assert _get(served, f"/nothing?{token}")[0] == 404
    assert _get(served, f"/news?{token}&since=nonsense")[0] == 200


def test_a_port_in_use(run: Runner) -> None:
    """A port that somebody else has is named, with what to do."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} cannot be used"):
            open_server(run.latest().resolve(), port)


def test_the_page_streams(rollcall: Runner, held: "subprocess.Popen[str]", look: Callable[..., Looked]) -> None:
    """In the browser ops are added while they happen; a browser that slept gets what it missed."""
    command = [sys.executable, "-m", "rollcall", "watch", "--web"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, cwd=rollcall.folder, env=rollcall.env, text=True, **streams)
    try:
        assert server.stdout is not None
        shown = look(server.stdout.readline().strip())
        shown.page.wait_for_function("rollcall.live.takes >= 1")
        assert "all_reduce at script.py:10" in shown.page.inner_text("#now")
        before = shown.ask("rollcall.timeline.start.length")
        assert shown.ask("rollcall.timeline.duration") > 0
        asleep = "value => Object.defineProperty(document, 'hidden', { get: () => value, configurable: true })"
        shown.ask(asleep, True)
        (rollcall.folder / "go").touch()
        held.wait(60)
        shown.ask(asleep, False)
        shown.ask("() => dispatchEvent(new Event('visibilitychange'))")
        shown.page.wait_for_function("rollcall.live.isOver")
        assert shown.ask("rollcall.timeline.start.length") == before + 20 * 3 + 1  # and rank 1's own all_reduce
        assert shown.page.inner_text(".pill") == "ok"
        assert shown.complaints == []
        assert all(url.startswith("http://127.0.0.1:") for url in shown.asked)
    finally:
        server.terminate()
        server.wait(30)
        if server.stdout is not None:
            server.stdout.close()
