"""One number of a run, or several that differ by a label."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """`values` is by the value of the label; by the empty string where there is no label."""

    name: str  # without the prefix rollcall_
    kind: Literal["gauge", "counter"]
    help: str
    values: Mapping[str, float]
    label: str = ""


def gauge(name: str, help_text: str, value: float) -> Metric:
    return Metric(name, "gauge", help_text, {"": value})
