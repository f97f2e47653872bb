"""`python -m rollcall.live.metrics.monitor FOLDER PARENT [FD]`: the process that a launcher starts beside a run.

It answers scrapes on the socket FD, exports to OpenTelemetry where that is set up, and prints a line of JSON for each
straggler. It ends with its launcher, and takes a small share of one core.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import load
from rollcall.explain.verdict import as_dict, explain_run
from rollcall.linux import prctl
from rollcall.live.metrics import otlp
from rollcall.live.metrics.collector import Collector
from rollcall.live.metrics.metric import Metric
from rollcall.live.metrics.prometheus import MetricsServer, text_of
from rollcall.live.rate_limit import RateLimit

_NICENESS = 10  # the ranks come first
_COLLECT_EVERY_S = 5.0  # also if nobody asks: what is new in the rings must not be overwritten before
_FRESH_S = 1.0  # two requests within this time get the same answer
# To find stragglers, explain reads at most this many of the newest ops, with at most this share of a core.
_MOST_EXPLAINED = 100_000
_EXPLAIN_SHARE, _EXPLAIN_EVERY_S = 0.01, 10.0


class Monitor:
    def __init__(self, folder: Path) -> None:
        self._folder, self._collector = folder, Collector(folder)
        self._lock = threading.Lock()
        self._collected_s, self._metrics = 0.0, list[Metric]()
        self._limit = RateLimit(_EXPLAIN_SHARE, _EXPLAIN_EVERY_S)
        self._told: set[str] = set()

    def metrics(self) -> list[Metric]:
        with self._lock:
            if time.monotonic() - self._collected_s >= _FRESH_S:
                self._metrics, self._collected_s = self._collector.collect(), time.monotonic()
            return self._metrics

    def text(self) -> str:
        return text_of(self.metrics(), {"run": self._folder.name})

    def new_stragglers(self) -> Iterator[dict[str, Any]]:
        """Ranks that keep the others waiting, each time with another set of ranks."""
        if self._limit.left_s:
            return
        began_s = time.thread_time()
        found = _slow_ranks(self._folder)
        self._limit.add(time.thread_time() - began_s)
        for finding in found:
            key = f"{finding['kind']} {finding['ranks']}"
            if key not in self._told:
                self._told.add(key)
                yield finding


def _slow_ranks(folder: Path) -> list[dict[str, Any]]:
    try:
        findings = explain_run(Evidence(load(folder, newest=_MOST_EXPLAINED))).findings
    except (UsageError, OSError, ValueError):  # no ring yet, or one that is being written
        return []
    return [as_dict(each) for each in findings if each.effect == "slow"]


def main(folder: Path, parent: int, fd: int | None) -> None:
    prctl.die_with_parent(parent)
    os.nice(_NICENESS)
    monitor = Monitor(folder)
    if fd is not None:
        server = MetricsServer(socket.socket(fileno=fd), monitor.text)
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    otlp.export(monitor.metrics, folder.name, os.environ)
    while True:
        monitor.metrics()
        for finding in monitor.new_stragglers():
            print(json.dumps(finding, default=str), flush=True)
        time.sleep(_COLLECT_EVERY_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
