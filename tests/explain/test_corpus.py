"""A bug of each kind that explain names, and its twin, as a user would run them. `make corpus` runs all programs."""

from pathlib import Path

import pytest

from .corpus import CORPUS, Program, explain, is_right

# Only those whose evidence does not depend on who dies first: where gloo aborts one rank before another has come to the
# call, the majority is not there to be counted.
NAMED = [
    "busy-rank/solver",
    "buffer-overwritten/ring_buffer",
    "cross-group-deadlock/channels",
    "cross-group-deadlock/mesh",
    "ddp-model-mismatch/task_order",
    "ddp-uneven-inputs/clean_rows",
    "group-incomplete/pair",
    "input-stall/feeder",
    "mismatched-dtype/compression",
    "mismatched-op/collector",
    "mismatched-reduce-op/worst_loss",
    "mismatched-root/reports",
    "missing-rank/epoch",
    "non-member-call/editors",
    "order-inversion/two_losses",
    "order-swap/epoch_end",
    "p2p-against-collective/next_rate",
    "p2p-deadlock/prefix_sum",
    "p2p-dtype/labels",
    "p2p-size/features",
    "rank-exited-early/no_files",
    "rank-failed/price_table",
    "tag-mismatch/parameter_server",
    "unmatched-recv/collect_any",
    "unmatched-send/vocab_size",
    "unwaited-work/gradients",
    "world-incomplete/spare_rank",
    "wrong-peer/tree_sum",
]
ONE_OF_EACH_KIND = list({name.partition("/")[0]: name for name in NAMED}.values())


@pytest.mark.parametrize("name", NAMED)
def test_the_bug_is_named(name: str, tmp_path: Path) -> None:
    """Right kind, right ranks, right line."""
    program = Program.read(CORPUS / f"{name}.py")
    told = explain(program, tmp_path)
    assert is_right(program, told["verdict"]), (program, told["verdict"])


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_the_twin_is_not_blamed(name: str, tmp_path: Path) -> None:
    """The same calls without the bug: no finding at all."""
    told = explain(Program.read(CORPUS / f"{name}_ok.py"), tmp_path)
    assert (told["outcome"], told["findings"]) == ("ok", [])
