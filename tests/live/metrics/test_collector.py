"""The numbers of a run, from rings of which all is known."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from rollcall.live.metrics.collector import MOST_LABELS, OTHERS, Collector, bounded
from rollcall.live.metrics.metric import Metric, gauge
from rollcall.live.metrics.prometheus import text_of
from rollcall.runs import TRAINING
from rollcall.train.reporting.progress_file import ProgressFile
from tests.report.rings import FakeOp, write


def collect(folder: Path) -> dict[str, Metric]:
    return {metric.name: metric for metric in Collector(folder).collect()}


def late_twice(folder: Path, attempt: int = 0) -> Path:
    """Rank 1 comes 300 ms late to one all_reduce, and 200 ms to the next."""
    first = [FakeOp("all_reduce", 1, 100, 500), FakeOp("all_reduce", 2, 600, 900)]
    second = [FakeOp("all_reduce", 1, 400, 500), FakeOp("all_reduce", 2, 800, 900)]
    return write(folder, [first, second], attempt=attempt)


def test_ops_bytes_and_waits_are_counted(tmp_path: Path) -> None:
    found = collect(late_twice(tmp_path))
    assert found["ops_total"].values == {"all_reduce": 4}
    assert found["bytes_total"].values == {"all_reduce": 16000}
    assert found["others_waited_seconds_total"].values == pytest.approx({"0": 0.0, "1": 0.5})
    assert found["world_size"].values == {"": 2}


def test_what_was_counted_is_not_counted_again(tmp_path: Path) -> None:
    collector = Collector(late_twice(tmp_path))
    collector._limit.add = lambda _: None  # type: ignore[method-assign]  # waits are looked at every time
    before = {metric.name: dict(metric.values) for metric in collector.collect()}
    after = {metric.name: dict(metric.values) for metric in collector.collect()}
    counters = ("ops_total", "bytes_total", "others_waited_seconds_total")
    assert [after[name] for name in counters] == [before[name] for name in counters]


def test_counters_go_on_in_the_next_attempt(tmp_path: Path) -> None:
    collector = Collector(late_twice(tmp_path))
    collector.collect()
    late_twice(tmp_path, attempt=1)
    found = {metric.name: metric for metric in collector.collect()}
    assert found["ops_total"].values == {"all_reduce": 8}


def test_ranks_share_a_label_where_they_are_many() -> None:
    by_rank = np.zeros(1024)
    by_rank[[700, 3]] = 5.0, 2.0
    by_rank[800:900] = 0.5
    found = bounded(by_rank)
    assert len(found) == MOST_LABELS + 1
    assert (found["700"], found["3"]) == (5.0, 2.0)
    assert sum(found.values()) == pytest.approx(by_rank.sum())
    assert OTHERS not in bounded(np.ones(4))


def test_the_trainer_tells_its_speed(tmp_path: Path) -> None:
    """Once a second; a run without one has no such numbers."""
    assert "training_step" not in collect(late_twice(tmp_path))
    progress = ProgressFile(True, {"ROLLCALL_RUN": str(tmp_path)})
    progress.write(1, 0, 10)
    assert not (tmp_path / TRAINING).exists()
    progress._last_s, progress._last_samples = progress._last_s - 10, 100
    progress.write(7, 1, 600)
    found = collect(tmp_path)
    assert (found["training_step"].values, found["training_epoch"].values) == ({"": 7}, {"": 1})
    assert 40 < found["training_samples_per_s"].values[""] <= 50


def test_names_are_escaped() -> None:
    lines = text_of([Metric("x", "gauge", "A number.", {'a"b': 1.5}, "op")], {"run": "r\\1"}).splitlines()
    assert lines[-1] == 'rollcall_x{run="r\\\\1",op="a\\"b"} 1.5'


def test_metrics_are_exported_to_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver gets them by OTLP over HTTP, with their names and labels."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    from rollcall.live.metrics import otlp

    received: list[bytes] = []
    has_come = threading.Event()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            has_come.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    waits = Metric("others_waited_seconds_total", "counter", "Waits.", {"1": 2.5}, "rank")
    provider = otlp.export(lambda: [gauge("up", "Up.", 1), waits], "run-1", environ)
    assert has_come.wait(60)
    assert provider is not None
    provider.shutdown()
    server.shutdown()
    server.server_close()
    request = ExportMetricsServiceRequest.FromString(received[0])
    (scope,) = request.resource_metrics[0].scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    (point,) = found["rollcall_others_waited_seconds_total"].sum.data_points
    assert (point.as_double, point.attributes[0].value.string_value) == (2.5, "1")
    assert "run-1" in str(request.resource_metrics[0].resource)
    assert json.dumps(sorted(found)) == '["rollcall_others_waited_seconds_total", "rollcall_up"]'
