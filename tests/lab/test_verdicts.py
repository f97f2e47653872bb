"""Verdicts, claims, fits and pages, from stored results: no ranks."""

import copy
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from rollcall.errors import UsageError
from rollcall.lab import NAMES
from rollcall.lab.experiment import load, median_of_slowest
from rollcall.lab.experiments.collective import barrier, ring
from rollcall.lab.experiments.training import gradients, scaling
from rollcall.lab.runner import pages

DOCS = Path(__file__).parents[2] / "docs" / "lab"


def stored(name: str) -> dict[str, object]:
    return dict(json.loads((DOCS / "results" / f"{name}.json").read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_what_its_results_and_the_code_make_it(name: str) -> None:
    """No number is typed by hand: `python -m rollcall.lab.runner.pages --from-results` writes the same page."""
    page = (DOCS / f"{name}.md").read_text()
    assert page == pages.make_page(load(name), stored(name), page)
    assert "## What to try next\n\n- " in page
    assert (DOCS / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_gradient_and_weight_of_a_step_have_one_axis() -> None:
    """Gradients exist only from backward on, and must not be drawn above "start"."""
    figure = Figure()
    gradients.draw(stored("gradients")["results"], figure)
    _, above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_claims_held(name: str) -> None:
    """No invariant was violated in the run behind the page."""
    verdict = load(name).judge(stored(name)["results"])
    assert not verdict.violations
    assert verdict.claims


def test_the_index_lists_all() -> None:
    """docs/lab/README.md has a line for every experiment, with its question and a link to its page."""
    lines = [line for line in (DOCS / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert lines == [f"| [{name}]({name}.md) | {load(name).question} |" for name in NAMES]


def test_a_barrier_that_does_not_order_is_a_violation() -> None:
    """One result before one message, with a barrier: the claim is named."""
    results = copy.deepcopy(stored("barrier")["results"])
    times = results[0]["times"]["barrier"][0]  # type: ignore[index]
    times[2] = times[0] - 10_000_000_000
    verdict = barrier.judge(results)
    assert verdict.violations == ("with a barrier no result comes before a message",)
    assert verdict.numbers["barrier"]["inversions"] == 1


def test_a_claim_that_usually_holds_is_no_violation() -> None:
    """No inversion without a barrier is reported, with exit code 0."""
    results = copy.deepcopy(stored("barrier")["results"])
    for result in results:  # type: ignore[attr-defined]
        result["times"]["no barrier"] = result["times"]["barrier"]
    verdict = barrier.judge(results)
    assert not verdict.violations
    assert "in 0 of 200 trials" in verdict.sentence


def test_sums_that_differ_are_a_violation() -> None:
    """Of the ring, and of weights that should be equal."""
    results = copy.deepcopy(stored("ring")["results"])
    results[1]["equal"]["whole"]["bit_equal"] = False  # type: ignore[index]
    assert ring.judge(results).violations
    results = copy.deepcopy(stored("gradients")["results"])
    results[0]["spread"]["DDP"] = [1e-3]  # type: ignore[index]
    assert gradients.judge(results).violations


def test_times_of_two_machines_are_not_compared() -> None:
    """Each machine has its own clock: one sentence, no verdict."""
    results = copy.deepcopy(stored("barrier")["results"])
    results[0]["machine"] = "another"  # type: ignore[index]
    with pytest.raises(UsageError, match="2 machines"):
        barrier.judge(results)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_amdahls_share_is_found_again(share: float) -> None:
    """Speedups that follow the law exactly give back the share they were made with."""
    speedups = {n: 1 / (share + (1 - share) / n) for n in (1, 2, 4, 8)}
    assert scaling.fit_amdahl(speedups) == pytest.approx(share)


def test_a_trial_takes_as_long_as_its_slowest_rank() -> None:
    assert median_of_slowest([[1, 5, 2], [3, 1, 2]]) == 3
