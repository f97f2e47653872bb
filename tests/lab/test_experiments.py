"""Every experiment on real ranks, with few trials: claims that must hold do, and the numbers are as expected."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.explain.verdict import explain
from rollcall.lab import NAMES
from rollcall.lab.experiment import LabSettings, Results, Verdict, load
from rollcall.lab.runner import perform, run_folder

# Few trials, but enough to see the effect.
TRIALS = {
    "barrier": 30,
    "send": 3,
    "isend": 3,
    "collectives": 1,
    "ring": 1,
    "gradients": 1,
    "overlap": 2,
    "backends": 1,
    "bandwidth": 3,
    "straggler": 20,
    "scaling": 2,
}
HANG_AFTER_S = 1.0  # without progress on any rank


def run(
    name: str,
    folder: Path,
    ranks: int = 4,
    report: perform.Report = lambda _: None,
    is_recorded: bool = False,
    **options: Any,
) -> tuple[Results, Verdict]:
    """One experiment with few trials; a case that is meant to hang is ended early."""
    experiment = load(name)
    experiment = replace(
        experiment,
        cases=tuple(replace(case, limit_s=HANG_AFTER_S) if case.may_fail else case for case in experiment.cases),
    )
    settings = perform.check(experiment, LabSettings(ranks, TRIALS.get(name, 1), options=options))
    results = perform.collect(experiment, settings, folder, report, is_recorded)
    verdict = experiment.judge(results)
    assert not verdict.violations, verdict.sentence
    return results, verdict


def held(verdict: Verdict) -> set[str]:
    return {claim.text for claim in verdict.claims if claim.holds}


def test_hello_tells_the_thirteen_facts(tmp_path: Path) -> None:
    """Every rank has them, and the same world comes together by env://, tcp:// and file://."""
    results, verdict = run("hello", tmp_path, ranks=3)
    assert verdict.numbers["init_methods"] == ["env://", "file://", "tcp://"]
    assert [result["facts"]["global_rank"] for result in results] == [0, 1, 2]
    assert "World size in the initialised group: 3" in results[0]["display"]
    assert "gloo" in verdict.numbers["backends"]


def test_with_a_barrier_no_result_comes_before_a_message(tmp_path: Path) -> None:
    """In no trial with a barrier, in some without; and the progress bar moves, and never back."""
    shares: list[float] = []
    _, verdict = run("barrier", tmp_path, report=shares.append)
    numbers = verdict.numbers
    assert numbers["barrier"]["inversions"] == numbers["barrier, slow rank"]["inversions"] == 0
    assert numbers["no barrier"]["inversions"] > 0
    # A rank that sleeps before its message is later than the others' results, always.
    assert numbers["no barrier, slow rank"]["inversions"] == 30
    assert any(0 < share < 1 for share in shares)
    assert shares == sorted(shares)


def test_recv_writes_in_place(tmp_path: Path) -> None:
    """Every rank ends with one, in its own tensor, and receivers cannot change the sender's."""
    results, verdict = run("send", tmp_path, ranks=3)
    assert len(held(verdict)) >= 5
    assert {seen["after"] for result in results for seen in result["seen"]} == {1.0}


def test_tensors_used_before_wait_are_wrong(tmp_path: Path) -> None:
    """After wait() nothing is wrong; a tensor that is read before it still has its old content."""
    _, verdict = run("isend", tmp_path, ranks=2)
    wrong = verdict.numbers["wrong_trials"]
    assert wrong["overwritten after wait"] == wrong["read after wait"] == 0
    assert wrong["overwritten early"] + wrong["read early"] > 0


def test_collectives_do_what_they_say(tmp_path: Path) -> None:
    """Each has the right result, with every reduce op; an all_reduce sends 2(n−1)/n, as the kernel counts it."""
    _, verdict = run("collectives", tmp_path, ranks=3)
    sent = verdict.numbers["sent_bytes"]
    assert not verdict.numbers["wrong"]
    assert not verdict.numbers["wrong_ops"]
    for rank in range(3):
        assert sent["all_reduce"][rank] == pytest.approx(2 * 2 / 3 * (1 << 20), rel=0.05)
    assert sent["scatter"][1] < 1000 < sent["scatter"][0]


def test_a_group_is_a_scope(tmp_path: Path) -> None:
    """A broadcast stays in its group, a non-member keeps its tensor, and groups created out of order fail or hang."""
    results, verdict = run("groups", tmp_path)
    assert [seen["after"] for seen in results["two groups"]["values"]] == [100, 101, 100, 101]
    # Two ranks use the same keys of the store: gloo hangs, or a connection is reset.
    assert verdict.numbers["ended"]["another order"] in ("hung", "failed")
    assert verdict.numbers["explain"]["another order"] in ("group-incomplete", "order-swap")
    assert verdict.numbers["explain"]["non-member call"] == "non-member-call"
    assert verdict.numbers["explain"]["members only"] == "group-incomplete"


def test_the_ring_equals_the_library(tmp_path: Path) -> None:
    """Bit-identical without rounding, within rounding otherwise; the ring with the wrong buffer does not."""
    results, _ = run("ring", tmp_path, ranks=3, is_recorded=True)
    # Different parts of one tensor are sent and written at the same time: that is correct, and no finding.
    assert "buffer-overwritten" not in {finding.kind for finding in explain(tmp_path).findings}
    for result in results:
        equal = result["equal"]
        assert equal["whole"]["bit_equal"]
        assert equal["exact"]["bit_equal"]
        assert equal["random"]["within_bound"]
        assert not equal["wrong buffer"]["bit_equal"]


def test_the_update_uses_the_average(tmp_path: Path) -> None:
    """By hand and with DDP the weights are those of one process; without averaging ranks differ, without any error."""
    _, verdict = run("gradients", tmp_path, ranks=2)
    numbers = verdict.numbers
    assert max(numbers["apart"]["by hand"], numbers["apart"]["DDP"]) <= 1e-6
    assert numbers["averaged"]["wrong type check"] == 0
    assert numbers["spread"]["wrong type check"] == numbers["spread"]["no averaging"] > 0.01


def test_ddp_communicates_during_backward(tmp_path: Path) -> None:
    """DDP sends buckets during backward, averaging by hand does not; no_sync sends once."""
    _, verdict = run("overlap", tmp_path, ranks=2)
    numbers = verdict.numbers
    assert numbers["hidden_share"]["by hand, after backward"] == 0
    assert numbers["hidden_share"]["DDP, 1 MB buckets"] > 0
    assert numbers["all_reduces"]["DDP, no_sync, 4 micro-batches"] == 1


def test_without_a_gpu_the_cpus_part_is_measured(tmp_path: Path) -> None:
    """The verdict says so."""
    results, verdict = run("backends", tmp_path, ranks=2)
    if not results[0]["gpu"]:
        assert "no GPU" in verdict.sentence
        assert set(verdict.numbers["times_s"]) == {"copy CPU to CPU", "gloo, CPU tensor"}


def test_bandwidth_has_statistics_of_every_size(tmp_path: Path) -> None:
    """Sizes double from 512 KB on; bus bandwidth is 2(n−1)/n of algorithm bandwidth."""
    _, verdict = run("bandwidth", tmp_path, ranks=2, largest="2MB")
    assert list(verdict.numbers["sizes"]) == ["524288", "1048576", "2097152"]
    for each in verdict.numbers["sizes"].values():
        assert each["p5_s"] <= each["p50_s"] <= each["p95_s"]
        assert each["bus_bytes_per_s"] == pytest.approx(each["algorithm_bytes_per_s"])


def test_the_recording_names_the_slow_rank(tmp_path: Path) -> None:
    """With a delay of 20 ms the others wait for the last rank, which waits least itself."""
    _, verdict = run("straggler", tmp_path, ranks=2)
    slowed = verdict.numbers["by_delay_ms"]["20"]
    assert slowed["slowest"] == 1
    assert slowed["suffered_s"][1] == min(slowed["suffered_s"].values())
    assert slowed["what_if_step_s"] < slowed["step_s"]


def test_deadlocks_hang_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three programs hang, explain names each with its ranks, and the fixed versions have the right values."""
    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path))
    folder = run_folder.create(load("deadlock"), LabSettings(3, 1))
    results, verdict = run("deadlock", folder.path, ranks=3)
    run_folder.complete(folder, load("deadlock"), results)
    # The run itself shows one of them.
    shown = explain(folder.path)
    assert (shown.outcome, shown.verdict and shown.verdict.ranks) == ("hung", (0, 1, 2))
    assert verdict.numbers["named"] == ["recv recv", "ring of receives", "send send"]
    assert verdict.numbers["explain"]["ring of receives"] == {"kind": "p2p-deadlock", "ranks": [0, 1, 2]}


def test_disagreements_crash_hang_or_give_wrong_values(tmp_path: Path) -> None:
    """Another dtype or reduce op gives wrong values, another order none at all; explain names the rank that differs."""
    results, verdict = run("mismatch", tmp_path, ranks=3)
    fates, kinds = verdict.numbers["fates"], verdict.numbers["explain"]
    assert fates["reduce op"] == fates["dtype"] == "wrong values"
    assert {fates["order"], fates["absence"]} <= {"hang", "crash"}  # gloo may notice that the sizes differ
    assert (kinds["shape"], kinds["dtype"]) == ("mismatched-shape", "mismatched-dtype")
    assert (kinds["reduce op"], kinds["order"]) == ("mismatched-reduce-op", "order-swap")
    assert all(results[case]["verdict"]["ranks"] == [2] for case in ("shape", "dtype", "reduce op", "order"))


def test_a_second_host_costs_what_its_link_takes(tmp_path: Path) -> None:
    """The same sums on one host and on two; if the kernel can limit the link, the slow one takes longer."""
    hosts = load("hosts")
    here, fast, slow = hosts.cases
    results = perform.collect(replace(hosts, cases=(here, slow)), LabSettings(2, 2), tmp_path)
    # Hosts take seconds to start: those with the fast link differ in a number only.
    verdict = hosts.judge({here.name: results[here.name], fast.name: results[slow.name], slow.name: results[slow.name]})
    assert not verdict.violations, verdict.sentence
    if {value["host"] for value in results[slow.name]["values"]} == {"host-1", "host-2"}:
        times = verdict.numbers["times_s"]
        assert times[slow.name]["1 MB"] > times[here.name]["1 MB"]


def test_scaling_is_fitted_by_amdahl(tmp_path: Path) -> None:
    """Every number of ranks is measured, and the serial share is between 0 and 1."""
    _, verdict = run("scaling", tmp_path, ranks=3)
    assert list(verdict.numbers["speedup"]["strong"]) == ["1", "2", "3"]
    assert all(0 <= share <= 1 for share in verdict.numbers["serial_share"].values())


def test_some_of_1024_ranks_are_rehearsed(tmp_path: Path) -> None:
    """In this world only, some ranks have fewer batches."""
    rehearsal = load("rehearsal")
    large = replace(rehearsal, cases=rehearsal.cases[-1:])
    (result,) = perform.collect(large, LabSettings(1, 1), tmp_path)["1,024 ranks"]["values"]
    assert (result["found"], result["kinds"]) == ("ddp-uneven-inputs", [[0, 63], [64, 1023]])


def test_every_experiment_has_a_test() -> None:
    """A new experiment needs one, and a question, and code for its page."""
    here = Path(__file__).read_text()
    for name in NAMES:
        assert f'run("{name}"' in here or f'load("{name}")' in here
        experiment = load(name)
        assert experiment.about.startswith(f"rollcall lab {name}\n")
        assert experiment.question.endswith("?")
        assert experiment.code_on_page


def test_an_experiment_runs_on_virtual_hosts(tmp_path: Path) -> None:
    """`--virtual-hosts 2 -n 1`: two ranks, each the first of its node, and recorded."""
    hello = load("hello")
    results = perform.collect(hello, LabSettings(1, 1, virtual_hosts=2), tmp_path, is_recorded=True)
    assert [(r["facts"]["node_rank"], r["facts"]["local_rank"]) for r in results] == [(0, 0), (1, 0)]
    assert not hello.judge(results).violations
    assert len(list((tmp_path / "rings" / "attempt-0").glob("rank-*.ring"))) == 2
