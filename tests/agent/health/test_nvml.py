"""GPUs as NVML tells of them, by a library that has the faults which a test asks for."""

from pathlib import Path

import pytest

from rollcall.agent.health import nvml
from rollcall.coordinator import health
from tests.agent.health.fake_nvml import build


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def use(library: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(nvml.LIBRARY, str(library))
    return monkeypatch


def test_healthy_gpus_are_told_without_a_word_of_blame(use: pytest.MonkeyPatch) -> None:
    facts = nvml.facts()
    assert [gpu["name"] for gpu in facts["gpus"]] == ["Fake", "Fake"]
    assert (facts["driver"], facts["cuda"]) == ("580.1", "13.0")
    assert health.find({"a": facts, "b": facts}, []) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("ecc", "GPU 1 has 3 uncorrected ECC errors, expected 0"),
        ("pending", "GPU 1 waits for a reset to replace broken rows"),
        ("remap-failed", "GPU 1 could not replace broken rows of its memory"),
        ("hot", "GPU 1 is throttled (too hot (hardware))"),
        ("brake", "GPU 1 is throttled (power brake)"),
        ("fever", "GPU 1 has 95 °C, and slows down from 90 °C on"),
        ("capped", "GPU 1 may take 200 W, and 700 W is its default"),
        ("used", "GPU 1 is used by 2 processes already"),
        ("off-bus", "GPU 1 is lost: it has fallen off the bus"),
        ("driver", "driver is 1.0, and 580.1 on 2 of 3 hosts"),
        ("one-missing", "the number of GPUs is 1, and 2 on 2 of 3 hosts"),
        ("clock", "the highest clock of its GPUs (MHz) is 900, and 1980 on 2 of 3 hosts"),
    ],
)
def test_each_fault_is_named(fault: str, words: str, use: pytest.MonkeyPatch) -> None:
    well = nvml.facts()
    use.setenv("FAKE_NVML", fault)
    (found,) = health.find({"a": well, "b": nvml.facts(), "c": well}, [])
    assert str(found).startswith(f"b: {words}")


def test_without_a_driver_there_are_no_gpus(use: pytest.MonkeyPatch) -> None:
    use.setenv("FAKE_NVML", "no-driver")
    assert nvml.facts() == {}
    use.setenv(nvml.LIBRARY, "/nowhere/libnvidia-ml.so.1")
    assert nvml.facts() == {}
