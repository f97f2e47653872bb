"""Exports the metrics to OpenTelemetry (OTLP over HTTP), where it is installed and an endpoint is set.

OpenTelemetry's own variables say where and how often: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_METRIC_EXPORT_INTERVAL, ….
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rollcall.errors import say
from rollcall.live.metrics.metric import Metric

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")


def export(metrics: Callable[[], list[Metric]], run: str, environ: Mapping[str, str]) -> "MeterProvider | None":
    """Begin to export in a thread of OpenTelemetry's own, if there is an endpoint."""
    if not any(environ.get(name) for name in ENDPOINTS):
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        say("OTEL_EXPORTER_OTLP_ENDPOINT is set, but opentelemetry is missing: pip install 'torch-rollcall[otlp]'")
        return None
    return _begin(metrics, run)


def _begin(metrics: Callable[[], list[Metric]], run: str) -> "MeterProvider":
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # here: it is an extra
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    resource = Resource.create({"service.name": "rollcall", "rollcall.run": run})
    provider = MeterProvider(metric_readers=[reader], resource=resource)
    meter = provider.get_meter("rollcall")
    known: set[str] = set()

    def observe(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            for metric in metrics():
                watch(metric)
                if metric.name == name:
                    for label, value in metric.values.items():
                        yield Observation(value, {metric.label: label} if metric.label else {})

        return read

    def watch(metric: Metric) -> None:
        """Metrics appear later, too: a Trainer's with its first step."""
        if metric.name not in known:
            known.add(metric.name)
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            make(f"rollcall_{metric.name}", [observe(metric.name)], description=metric.help)

    for metric in metrics():
        watch(metric)
    return provider
