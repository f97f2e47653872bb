"""The text that Prometheus scrapes, and the server for it."""

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rollcall.live.metrics.metric import Metric

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_IDLE_S = 20.0


def text_of(metrics: Iterable[Metric], labels: Mapping[str, str]) -> str:
    """Returns the metrics in Prometheus' text format; every value has these labels."""
    return "\n".join(line for metric in metrics for line in _lines(metric, labels)) + "\n"


def _lines(metric: Metric, labels: Mapping[str, str]) -> Iterator[str]:
    name = f"rollcall_{metric.name}"
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {metric.kind}"
    for value_of_label, value in metric.values.items():
        all_labels = {**labels, **({metric.label: value_of_label} if metric.label else {})}
        words = ",".join(f'{key}="{_escaped(each)}"' for key, each in all_labels.items())
        yield f"{name}{{{words}}} {value:.15g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsServer(ThreadingHTTPServer):
    """Answers GET /metrics on a socket that listens already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, text: Callable[[], str]) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.text = listener, text


class _Handler(BaseHTTPRequestHandler):
    timeout = _IDLE_S
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rollcall", ""

    def do_GET(self) -> None:
        assert isinstance(self.server, MetricsServer)
        if self.path.partition("?")[0] in ("/", "/metrics"):
            self._answer(200, self.server.text())
        else:
            self._answer(404, "the metrics are at /metrics\n")

    def _answer(self, code: int, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", _TEXT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a scrape is no news."""
