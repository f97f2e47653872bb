"""`rollcall watch`: a run while it runs, in a real terminal (tmux) and in a real browser."""

import contextlib
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rollcall.agent.monitoring.ring_upload import RingUpload
from rollcall.coordinator.run_folder import RunFolder
from rollcall.errors import UsageError
from rollcall.explain.loading import rings
from rollcall.live.reader import LiveRun
from rollcall.live.server import RateLimit, open_server
from rollcall.live.state import Observer
from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import File
from rollcall.record import ring_format
from rollcall.record.ring import Ring
from tests.report.fixtures import OpenedPage
from tests.report.rings import FakeOp, write
from tests.rollcall_command import ROLLCALL, Result, Runner, until

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


@dataclass
class WatchedRun:
    """A run in which ranks 0 and 2 wait for rank 1, as terminal and page show it: meanwhile, and when it is over."""

    piped: str = ""
    held: str = ""  # what the terminal shows
    later: str = ""
    over: str = ""
    page: dict[str, Any] = field(default_factory=dict)
    page_over: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    stacks: str = ""  # as the page shows them
    typed: str = ""  # as `rollcall stacks` prints them
    refused: dict[str, Result] = field(default_factory=dict)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[WatchedRun]:
    runner = Runner(tmp_path_factory.mktemp("held"))
    runner.script(HELD_UP)
    words = ("run", "-n", 3, "--hang-after", 1, "script.py")
    process = runner.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen = WatchedRun()
    try:
        assert until(lambda: _is_held(runner))
        with _terminal(runner) as screen, _served(runner.latest().resolve(), often=True) as url:
            shown = OpenedPage(browser, url)
            seen.piped = runner("watch").out
            assert until(lambda: "2 waiting" in screen()), screen()
            seen.held = screen()
            assert until(lambda: screen() != seen.held)  # the time goes on
            seen.later = screen()
            named = "document.querySelector('#verdict').textContent.includes('rank 1')"  # after --hang-after
            shown.page.wait_for_function(f"rollcall.live.takes >= 1 && rollcall.live.judged >= 2 && {named}")
            seen.page = _contents(shown)
            shown.page.click("text=stacks")
            shown.page.wait_for_function("document.querySelector('#stacks').textContent.includes('│')")
            seen.stacks = shown.page.inner_text("#stacks")
            seen.typed = runner("stacks").out
            seen.refused = {word: runner("stacks", "--rank", word) for word in ("7", "x")}
            # A browser that sleeps while the rest of the run happens.
            asleep = "value => Object.defineProperty(document, 'hidden', { get: () => value, configurable: true })"
            shown.ask(asleep, True)
            (runner.folder / "go").touch()
            process.wait(60)
            shown.ask(asleep, False)
            shown.ask("() => dispatchEvent(new Event('visibilitychange'))")
            shown.page.wait_for_function("rollcall.live.isDone")
            seen.refused["ended"] = runner("stacks")
            seen.page_over, seen.warnings = _contents(shown), shown.warnings
            shown.page.close()
            until(lambda: "code " in screen())
            seen.over = screen()
        yield seen
    finally:
        (runner.folder / "go").touch()
        process.wait(60)
        left = runner.wait_until_gone()
        for each in left:
            each.kill()
    assert not left, f"left running: {left}"


def _is_held(runner: Runner) -> bool:
    if not runner.latest().exists():
        return False
    run = LiveRun(runner.latest().resolve())
    waiting = [each for each in Observer(run).look() if each.state == "waiting" and each.waits_for == (1,)]
    run.close()
    return len(waiting) == 2


@contextlib.contextmanager
def _terminal(runner: Runner) -> Iterator[Callable[[], str]]:
    """`rollcall watch` under tmux: what is on its screen."""
    name = f"rollcall-{os.getpid()}"
    env = {name: value for name, value in runner.env.items() if name not in ("COLUMNS", "LINES")}
    tmux = ["tmux", "-L", name]
    command = f"{ROLLCALL[0]} watch --every 0.2; echo code $?; sleep 30"
    words = [*tmux, "new-session", "-d", "-x", "140", "-y", "24", command]
    subprocess.run(words, cwd=runner.folder, env={**env, "TERM": "xterm-256color"}, check=True)
    try:
        yield lambda: subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


@contextlib.contextmanager
def _served(folder: Path, often: bool = False) -> Iterator[str]:
    """The URL of a server; one that explains `often`, whatever that costs."""
    server, url = open_server(folder, 0)
    if often:
        server.page.explain_limit = RateLimit(share=1.0, least_s=0.3)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _contents(shown: OpenedPage) -> dict[str, Any]:
    """What a live page shows."""
    return {
        "now": shown.page.inner_text("#now"),
        "verdict": shown.page.inner_text("#verdict"),
        "facts": shown.page.inner_text("#facts"),
        "note": shown.page.inner_text("main").splitlines()[0],
        "pill": shown.page.inner_text(".pill"),
        "ops": shown.ask("rollcall.timeline.start.length"),
        "matrix": shown.ask(
            """() => { const at = Bokeh.documents.find(d => d.get_model_by_name('matrix'));
                const { down, across, value } = at.get_model_by_name('matrix').renderers[0].data_source.data;
                return [...value].map((s, i) => [down[i], across[i], s]); }"""
        ),
        "duration": shown.ask("rollcall.timeline.duration"),
        "lanes": shown.ask("rollcall.timeline.lanes"),
        "documents": shown.ask("Bokeh.documents.length"),
        "samples": shown.ask("rollcall.samples.byRank.get(1).map(each => each.place)"),
    }


needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")


@needs_tmux
def test_the_terminal_names_who_holds_up(watched: WatchedRun) -> None:
    """In a terminal the rank that others wait for comes first."""
    rows = watched.held.splitlines()
    first, second = rows[4].split(), rows[5].split()
    assert (first[0], first[2:5]) == ("1", ["computing", "in", first[4]])
    assert first[4] in ("script.py:8", "script.py:9")
    assert second[2:6] == ["waiting", "all_reduce", "at", "script.py:10"]


@needs_tmux
def test_the_table_goes_on_in_place(watched: WatchedRun) -> None:
    """The table is refreshed in place, and ends with the run."""
    assert watched.later.count("holds up") == 1
    assert "the run is over: ok" in watched.over
    assert "code 0" in watched.over


def test_stacks_of_a_run_are_folded(watched: WatchedRun) -> None:
    """Ranks that wait in the same place share a block, in the terminal and on the page; the run continues."""
    lines = watched.typed.splitlines()
    assert lines[0].startswith("ranks 0,2 │ ")
    assert any(line.endswith("(script.py:10)   dist.all_reduce(torch.ones(10))") for line in lines)
    assert any(line.startswith("rank 1    │ ") for line in lines)
    assert watched.stacks.startswith("ranks 0,2 │ ")
    assert "the run is over: ok" in watched.over


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("7", "there is no rank 7 in this run: it has ranks 0-2"),
        ("x", "--rank x does not name ranks: use 0, or 0,2-3, or all"),
        ("ended", "has ended (ok): `rollcall explain` says where its ranks were"),
    ],
)
def test_stacks_that_cannot_be_had_are_refused_in_one_sentence(watched: WatchedRun, asked: str, said: str) -> None:
    refused = watched.refused[asked]
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert said in refused.err


def test_a_pipe_gets_the_table_once(watched: WatchedRun) -> None:
    """Without a terminal, the table is printed once."""
    assert "3 ranks: 2 waiting, 1 computing" in watched.piped
    assert watched.piped.count("waits for") == 1


def test_the_page_streams(watched: WatchedRun) -> None:
    """In the browser ops are added while they happen; a browser that slept gets what it missed."""
    assert "all_reduce at script.py:10" in watched.page["now"]
    assert [lane["alive"][-1][1] for lane in watched.page["lanes"]] == [watched.page["duration"]] * 3  # in an op or not
    assert len({lane["host"] for lane in watched.page["lanes"]}) == 1
    assert watched.page_over["ops"] == watched.page["ops"] + 20 * 3 + 1  # and rank 1's own all_reduce
    assert watched.warnings == []


def test_the_page_is_explained_again(watched: WatchedRun) -> None:
    """While the run continues the verdict and the waits are those of now; each figure is there once."""
    waited = {(who, whom): seconds for who, whom, seconds in watched.page["matrix"]}
    over = {(who, whom): seconds for who, whom, seconds in watched.page_over["matrix"]}
    assert waited[0, 1] > 0
    assert over[0, 1] > waited[0, 1]
    assert "rank 1" in watched.page["verdict"]
    assert watched.page["verdict"] != watched.page_over["verdict"]
    assert watched.page["documents"] == watched.page_over["documents"] == 5


def test_the_page_says_that_the_run_is_over(watched: WatchedRun) -> None:
    """When the run ends, the page says so, and tells how it ended."""
    assert watched.page["pill"] == "running"
    assert watched.page_over["pill"] == "ok"
    assert watched.page_over["note"] == "The run is over: ok. What is here does not change any more."
    assert "outcome\tok" in watched.page_over["facts"]


def test_the_page_knows_where_ranks_were(watched: WatchedRun) -> None:
    """Where a rank was seen while it was in no op comes with the ops."""
    assert any(place.startswith("script.py:") for place in watched.page_over["samples"])
    assert re.search(r"computing\s+in script.py:[89]", watched.page["now"])


def test_ranks_without_a_ring_here(tmp_path: Path) -> None:
    """Ranks without a ring are listed, too; ranks that hold up most others come first."""
    ranks = [
        [FakeOp("all_reduce", 1, 0, 5), *([] if rank == 3 else [FakeOp("all_reduce", 2, 10)])] for rank in range(8)
    ]
    folder = write(tmp_path, ranks)
    (folder / "rings" / "attempt-0" / "rank-5.ring").unlink()
    now = Observer(LiveRun(folder)).look()
    assert [each.rank for each in now[:2]] == [3, 5]
    assert [each.holds_up for each in now[:2]] == [6, 6]
    assert now[1].state == "unseen"
    assert all(each.waits_for == (3, 5) for each in now[2:])


@pytest.mark.parametrize(
    ("plan", "host", "is_here"),
    [
        ({"transport": {"kind": "local"}}, "any", True),
        ({"transport": {"kind": "virtual"}}, "any", True),
        ({"transport": {"kind": "ssh"}}, "any", False),
        (None, os.uname().nodename, True),
        (None, "another-host", False),
    ],
)
def test_whether_all_ranks_are_on_this_machine(
    tmp_path: Path, plan: dict[str, object] | None, host: str, is_here: bool
) -> None:
    """The launcher knows; where another one started them, the names of their hosts tell."""
    folder = write(tmp_path / "run", [[FakeOp("barrier", 1, 0, 1)] for _ in range(2)], host)
    (folder / "run.json").write_text(json.dumps({"plan": plan} if plan else {}))
    run = LiveRun(folder)
    run.refresh()
    assert run.is_here == is_here
    run.close()


def test_a_rank_whose_recording_stopped_holds_nobody_up(tmp_path: Path) -> None:
    """What it does is not known: it is shown as unseen, and nobody is said to wait for it."""
    for rank in (0, 1):
        path = tmp_path / "rings" / "attempt-0" / f"rank-{rank}.ring"
        ring = Ring(path, rank=rank, world_size=2, attempt=0, host="here", size_bytes=ring_format.RECORDS_AT + 4096)
        group = ring.name("group", "g", {"name": "0", "ranks": [[0, 1]]})
        for _ in range(2 - rank):
            ring.add(ring_format.OP["barrier"], group=group)
        if rank:
            ring.note_stop("in barrier: ValueError: broken")
    run = LiveRun(tmp_path)
    waiting, stopped = sorted(Observer(run).look(), key=lambda each: each.rank)
    assert (waiting.state, waiting.waits_for, stopped.state, stopped.holds_up) == ("communicating", (), "unseen", 0)
    run.close()


@pytest.fixture
def served(run: Runner) -> Iterator[str]:
    """The URL of a server for the run that is over."""
    with _served(run.latest().resolve()) as url:
        yield url


def _get(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=180)
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
    for path in (
        "/",
        "/?token=",
        "/?token=wrong",
        "/news?token=wrong",
        "/explained?token=wrong",
        "/nothing",
        f"/?{token}x",
    ):
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


def test_a_port_in_use(run: Runner, tmp_path: Path) -> None:
    """A port that somebody else has is named, with what to do, also where there is nothing to watch."""
    (tmp_path / "run.json").write_text('{"outcome": "ok"}')
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = run("watch", tmp_path, "--web", "--port", port)
    assert found.code == 2
    assert found.err == (
        f"rollcall: port {port} cannot be used (Address already in use): use another, or leave --port out for a free"
        f" one\n"
    )
    with pytest.raises(UsageError, match="has no rings"):
        open_server(tmp_path, 0)


def test_before_any_rank_has_begun(tmp_path: Path) -> None:
    """The page waits for the first ring, asks again by itself, and is there when that is."""
    facts = {"outcome": "running", "launcher_pid": os.getpid(), "host": os.uname().nodename}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    with _served(tmp_path) as url:
        token = urlsplit(url).query
        waiting = _get(url, f"/?{token}")[1]
        assert b"No rank has begun yet" in waiting
        assert b'http-equiv="refresh"' in waiting
        assert json.loads(_get(url, f"/news?{token}&since=0")[1])["ranks"] == []
        assert json.loads(_get(url, f"/explained?{token}&seen=0")[1])["parts"] is None
        write(tmp_path, [[FakeOp("all_reduce", 1, 0, 5)]] * 2)
        assert b'id="timeline-data"' in _get(url, f"/?{token}")[1]


def test_the_command_serves(run: Runner) -> None:
    """`rollcall watch --web` prints its URL, answers there, and ends with Ctrl-C."""
    server = run.start("watch", "--web")
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        code, body = _get(url, f"/news?{urlsplit(url).query}&since=0")
        assert (code, json.loads(body)["over"]) == (200, "ok")
    finally:
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=180)
    assert "Traceback" not in err
    assert "ssh -L" in err


def test_it_asks_for_no_more_than_its_share() -> None:
    """What an answer costs decides when the next may be had; two who ask at once wait for both."""
    limit = RateLimit(share=0.02, least_s=5.0)
    assert limit.left_s == 0
    limit.add(0.001)
    assert limit.left_s == pytest.approx(5.0, abs=0.1)
    limit.add(1.0)
    assert limit.left_s == pytest.approx(55.0, abs=0.1)


def test_parts_of_a_ring_add_up(tmp_path: Path) -> None:
    """What a host sends of a ring while it is written, also when it goes round, is what stands there."""
    place = Path("rings", "attempt-0", "rank-0.ring")
    ring = Ring(
        tmp_path / "there" / place, rank=0, world_size=1, attempt=0, host="h",
        size_bytes=ring_format.RECORDS_AT + 200 * ring_format.RECORD.size,
    )  # fmt: skip
    (tmp_path / "here").mkdir()
    upload, here = RingUpload(tmp_path / "there"), RunFolder(tmp_path / "here", {})
    for step in range(6):
        site = ring.name("site", step, [["train.py", step, "step"]])
        for _ in range(90):
            ring.completed(ring.add(ring_format.OP["barrier"], 0, site=site))
        _pass_on(upload, here)
    got, written = rings.read(tmp_path / "here" / place), rings.read(tmp_path / "there" / place)
    assert got.names == written.names
    assert got.header.count == written.header.count == 540
    assert got.records.tobytes() == written.records.tobytes()


def _pass_on(upload: RingUpload, here: RunFolder) -> None:
    """As over a line between two hosts."""
    line = io.BytesIO()
    upload.send(Channel(io.BytesIO(), line), 0)
    line.seek(0)
    channel = Channel(line, io.BytesIO())
    while isinstance(message := channel.receive(), File):
        here.take(message)
