"""Which hosts are bad, from figures that the test gives."""

from itertools import permutations
from typing import Any

import pytest

from rollcall.agent.health import system
from rollcall.coordinator import health
from rollcall.coordinator.health import LinkSpeed
from rollcall.coordinator.healthy_hosts import without
from rollcall.errors import WorldError
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan, Program, Transport

WELL: dict[str, Any] = {
    "folder": "writable",
    "disk_free_bytes": 10**12,
    "shared_memory_free_bytes": 10**10,
    "open_files": 10**6,
    "load_per_core": 0.1,
    "infiniband": [{"port": "mlx5_0/1", "state": "ACTIVE", "rate": "400 Gb/sec"}],
    "flop_per_s": {"cpu": 50e9},
    "copied_bytes_per_s": {"cpu": 10e9},
    "all_reduce_bytes_per_s": 2e9,
}
LINKS = [LinkSpeed(start, end, 50e-6, 1e9) for start, end in permutations("abcd", 2)]


def found(links: list[LinkSpeed] = LINKS, **of_b: Any) -> list[str]:
    facts = {name: {**WELL, **(of_b if name == "b" else {})} for name in "abcd"}
    return [str(each) for each in health.find(facts, links)]


def test_hosts_that_are_alike_are_well() -> None:
    assert found() == []


def test_figures_vary_by_chance() -> None:
    """A tenth less is no problem; a busy machine on which all hosts are is none either."""
    assert found(flop_per_s={"cpu": 45e9}, copied_bytes_per_s={"cpu": 8e9}, all_reduce_bytes_per_s=1e9) == []
    facts = {name: {**WELL, "load_per_core": 3.0} for name in "abcd"}
    assert health.find(facts, LINKS) == []


@pytest.mark.parametrize(
    ("of_b", "words"),
    [
        (
            {"flop_per_s": {"cpu": 20e9}},
            "matrix multiplication on cpu: 20.0 GFLOP/s, median 50.0 GFLOP/s, threshold 35.0 GFLOP/s",
        ),
        (
            {"copied_bytes_per_s": {"cpu": 1e9}},
            "copying memory on cpu: 1.00 GB/s, median 10.0 GB/s, threshold 7.00 GB/s",
        ),
        ({"all_reduce_bytes_per_s": 1e8}, "all_reduce among its ranks: 100 MB/s, median 2.00 GB/s, threshold 800 MB/s"),
        ({"disk_free_bytes": 10**6}, "the disk of the folder has 1.00 MB left"),
        ({"shared_memory_free_bytes": 0}, "/dev/shm has"),
        ({"folder": "missing"}, "the folder of this run is missing — share it, or use --sync"),
        ({"open_files": 256}, "at most 256 open files, expected 1024"),
        ({"load_per_core": 2.0}, "load 2.00 per core, median 0.10, threshold 0.50"),
        (
            {"infiniband": [{"port": "mlx5_0/1", "state": "DOWN", "rate": "?"}]},
            "InfiniBand port mlx5_0/1 is DOWN",
        ),
    ],
)
def test_each_problem_is_named_with_its_figures(of_b: dict[str, Any], words: str) -> None:
    (text,) = found(**of_b)
    assert text.startswith(f"b: {words}")


def test_a_host_with_slow_connections_is_named_and_not_its_partners() -> None:
    slow = [LinkSpeed(x.start, x.end, 50e-6, 1e8) if x.end == "b" else x for x in LINKS]
    figures = "100 MB/s, median 1.00 GB/s, threshold 400 MB/s"
    assert found(slow) == [f"b: what it sends on its fastest connection: {figures}"]
    late = [LinkSpeed(x.start, x.end, 2e-3, 1e9) if "b" in (x.start, x.end) else x for x in LINKS]
    assert found(late) == ["b: its shortest round trip: 2.00 ms, median 50.0 µs, threshold 550 µs"]


def test_one_slow_link_is_no_bad_host() -> None:
    slow = [LinkSpeed(x.start, x.end, 50e-6, 1e8) if {x.start, x.end} == {"a", "b"} else x for x in LINKS]
    assert found(slow) == []


def test_a_second_look_counts_if_it_is_better() -> None:
    facts = {"b": {**WELL, "flop_per_s": {"cpu": 5e9}, "all_reduce_bytes_per_s": 3e9}}
    better = health.better(facts, {"b": WELL})["b"]
    assert (better["flop_per_s"], better["all_reduce_bytes_per_s"]) == ({"cpu": 50e9}, 3e9)
    first, second = [LinkSpeed("a", "b", 9.0, 5.0)], [LinkSpeed("a", "b", 7.0, 3.0)]
    assert health.faster(first, second) == [LinkSpeed("a", "b", 7.0, 5.0)]
    assert health.faster([LinkSpeed("a", "b", 0, 0, "no answer")], second) == second


def plan(*names: str, **transport: Any) -> Plan:
    kind = transport.pop("kind", "ssh")
    return Plan(Program("module", "m"), tuple(Host(name, 2) for name in names), Transport(kind, **transport))


def test_spares_take_the_places_of_bad_hosts() -> None:
    made = without(plan(*"abcd", spares=2), ["b"])
    assert [host.name for host in made.hosts] == ["a", "c", "d"]
    assert (made.transport.spares, made.world_size) == (1, 4)


def test_min_hosts_lets_the_world_shrink() -> None:
    assert without(plan(*"abc", min_hosts=2), ["b"]).world_size == 4
    with pytest.raises(WorldError, match="without a, b the run has 1 of 2 hosts"):
        without(plan(*"abc", min_hosts=2), ["a", "b"])


def test_without_spares_a_bad_host_cannot_be_left_out() -> None:
    with pytest.raises(WorldError, match="without b the run has 2 of 3 hosts"):
        without(plan(*"abc"), ["b"])


def test_infiniband_ports_are_read_as_the_kernel_shows_them(tmp_path: Any) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    assert system.links(tmp_path) == [{"port": "mlx5_0/1", "state": "ACTIVE", "rate": "100 Gb/sec"}]
