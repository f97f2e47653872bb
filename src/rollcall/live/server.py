"""`rollcall watch --web`: the page of the report, updated during the run.

The server listens on loopback only, and requires the token in its URL. It keeps no state per browser: one that sleeps
asks for nothing, and gets what is new when it wakes.
"""

import hmac
import json
import os
import secrets
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rollcall.errors import RollcallError, UsageError, say
from rollcall.explain.evidence import Evidence
from rollcall.live.rate_limit import RateLimit
from rollcall.live.reader import LiveRun
from rollcall.live.stacks import ask, in_words
from rollcall.live.state import Observer, RankNow
from rollcall.live.terminal import check_recorded
from rollcall.protocol.plan import LOOPBACK
from rollcall.report import page
from rollcall.report.write import gather, results_of
from rollcall.timeline.encode import encode
from rollcall.timeline.model import Attempt, Timeline

_NAMES = (LOOPBACK, "localhost", "[::1]")
_MOST_OPS = 40_000  # in one answer
_MOST_EXPLAINED = 200_000  # during the run; when it is over, all are
_MOST_RANKS = 200
_OVERLAP_NS = 300_000_000  # ops that were not over when they were sent are sent again
_IDLE_S = 20.0
# The share of a core that answers may take, and the least time between two of them.
_NEWS_SHARE, _NEWS_EVERY_S = 0.02, 2.0
_EXPLAIN_SHARE, _EXPLAIN_EVERY_S = 0.01, 5.0
_NICENESS = 10  # the ranks come first
# The page loads nothing; bokeh needs eval.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; connect-src 'self';"
    " img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_NOT_YET = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">'
    "<title>rollcall</title></head><body><p>No rank has begun yet: this page waits for them.</p></body></html>"
)


class LivePage:
    """A run, and the answers to a browser."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = LiveRun(folder)
        self._observer = Observer(self._run)
        self._news_lock, self._explain_lock = threading.Lock(), threading.Lock()
        self._stacks_lock = threading.Lock()
        self._news_limit = RateLimit(_NEWS_SHARE, _NEWS_EVERY_S)
        self.explain_limit = RateLimit(_EXPLAIN_SHARE, _EXPLAIN_EVERY_S)
        self._version, self._parts, self._is_final = 0, {"outcome": "running"}, False
        self._run.refresh()
        check_recorded(self._run)

    def html(self) -> str:
        with self._news_lock:
            self._run.refresh()
            if not self._run.rings:
                return _NOT_YET
            script = files("rollcall.report").joinpath("assets", "live.js").read_text(encoding="utf-8")
            return page.render(gather(self._folder, self._zero_ns()), script)

    def explained(self, seen: int) -> dict[str, Any]:
        """Verdict, waits and costs, if they are newer than the version that the browser has."""
        with self._explain_lock:
            is_over = self._run.is_over
            is_due = not self.explain_limit.left_s or (is_over and not self._is_final)
            if is_due and self._run.rings:
                began_s = time.thread_time()
                self._parts = page.parts(results_of(self._folder, None if is_over else _MOST_EXPLAINED))
                self._version += 1
                self._is_final = is_over
                self.explain_limit.add(time.thread_time() - began_s)
            return {
                "version": self._version,
                "parts": self._parts if self._version > seen else None,
                "outcome": self._parts["outcome"],
                "again": self.explain_limit.left_s,
            }

    def stacks(self) -> dict[str, str]:
        """Where the ranks are now, or why that is not known."""
        with self._stacks_lock:  # one question at a time, if several browsers ask
            try:
                return {"text": in_words(ask(self._folder))}
            except RollcallError as error:
                return {"text": str(error)}

    def news(self, since_s: float) -> dict[str, Any]:
        """The ops since a moment, as many as fit into one answer; and what each rank does now."""
        with self._news_lock:
            began_s = time.thread_time()
            answer = self._news(since_s)
            self._news_limit.add(time.thread_time() - began_s)
            return {**answer, "again": self._news_limit.left_s}

    def _news(self, since_s: float) -> dict[str, Any]:
        ranks = self._observer.look()
        zero_ns = self._zero_ns()
        since_ns = zero_ns + int(since_s * 1e9) - _OVERLAP_NS
        now_ns = 0 if self._run.is_over else self._run.common_now_ns()
        attempt = Attempt.of(Evidence(self._run.window(since_ns, _MOST_OPS), now_ns))
        shown = encode(Timeline([attempt], zero_ns, 0), {})
        from_s = max(since_ns - zero_ns, _beginning(attempt) - zero_ns) / 1e9
        there = {each.rank for each in ranks if each.state != "ended"}
        for lane in shown["meaning"]["lanes"]:
            if lane["rank"] in there and not self._run.is_over:  # a rank that is in no op is alive until now, too
                begin_s = lane["alive"][0][0] if lane["alive"] else from_s
                lane["alive"] = [[begin_s, shown["meaning"]["duration"]]]
        return {
            "attempt": self._run.attempt,
            "scene": shown,
            "from": from_s,
            "ranks": [_to_json(each) for each in ranks[:_MOST_RANKS]],
            "over": self._run.facts.get("outcome", "killed") if self._run.is_over else None,
        }

    def _zero_ns(self) -> int:
        """When the first ring was opened, by the common clock: that does not change while records are overwritten."""
        begins = [ring.header.monotonic_ns - self._run.offset_ns(rank) for rank, ring in self._run.rings.items()]
        return min(begins, default=0)


def _beginning(attempt: Attempt) -> int:
    """The first op of an answer: after the browser slept for long, that is later than what it asked for."""
    return int(attempt.bars.begin_ns.min()) if len(attempt.bars.row) else 0


def _to_json(each: RankNow) -> dict[str, Any]:
    return {
        "rank": each.rank,
        "host": each.host,
        "state": each.state,
        "op": each.doing,
        "seconds": round(each.since_s, 3),
        "waits_for": list(each.waits_for[:20]),
        "holds_up": each.holds_up,
        "ops_per_s": round(each.ops_per_s, 1),
        "mb_per_s": round(each.mb_per_s, 2),
        "cpu": each.cpu_percent,
        "memory": each.memory_bytes,
    }


class _Handler(BaseHTTPRequestHandler):
    """One request. Without the token the answer is 403 and nothing else."""

    timeout = _IDLE_S
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rollcall", ""

    def __init__(self, token: str, *args: Any) -> None:
        self._token = token
        super().__init__(*args)

    @property
    def _page(self) -> LivePage:
        assert isinstance(self.server, Server)
        return self.server.page

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if not self._is_allowed(query.get("token", [""])[0]):
            self._answer(403, "text/plain", b"403\n")
        elif url.path == "/":
            self._answer(200, "text/html; charset=utf-8", self._page.html().encode("utf-8", "replace"))
        elif url.path == "/news":
            answer = self._page.news(_number(query.get("since", ["0"])[0]))
            self._answer(200, "application/json", json.dumps(answer, allow_nan=False).encode())
        elif url.path == "/stacks":
            self._answer(200, "application/json", json.dumps(self._page.stacks()).encode())
        elif url.path == "/explained":
            why = self._page.explained(int(_number(query.get("seen", ["0"])[0])))
            self._answer(200, "application/json", json.dumps(why, allow_nan=False).encode())
        else:
            self._answer(404, "text/plain", b"404\n")

    def _is_allowed(self, token: str) -> bool:
        """The right token, host name and origin: a page of another site cannot ask."""
        host = self.headers.get("Host", "")
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        origin = self.headers.get("Origin")
        is_ours = origin is None or origin == f"http://{host}"
        return name in _NAMES and is_ours and hmac.compare_digest(token.encode(), self._token.encode())

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Other methods than GET, and invalid requests."""
        self.close_connection = True
        self._answer(403, "text/plain", b"403\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the URL has the token in it."""


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e9 else 0.0


class Server(ThreadingHTTPServer):
    daemon_threads = True
    page: LivePage

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser may go away at any time; other errors are reported."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            say(f"a request failed ({type(error).__name__}: {error}); the run is not affected")


def open_server(folder: Path, port: int) -> tuple[Server, str]:
    """The server, and its URL."""
    token = secrets.token_urlsafe(24)
    try:
        server = Server((LOOPBACK, port), partial(_Handler, token))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"port {port} cannot be used ({why}): use another, or leave --port out for a free one"
        ) from error
    try:
        server.page = LivePage(folder)
    except UsageError:
        server.server_close()
        raise
    return server, f"http://{LOOPBACK}:{server.server_address[1]}/?token={token}"


def serve(folder: Path, port: int) -> None:
    """Serves until Ctrl-C."""
    os.nice(_NICENESS)
    server, url = open_server(folder, port)
    number = server.server_address[1]
    print(url, flush=True)
    say(f"open it in a browser; from another machine, first ssh -L {number}:{LOOPBACK}:{number} HOST. Ctrl-C ends it")
    with server:
        server.serve_forever(poll_interval=0.5)
