"""The generator of programs for `make fuzz-explain`: seeds, mutations, and what counts as a right answer."""

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from benchmarks.fuzz import kept, mutations, programs, score
from benchmarks.fuzz.guilt import Guilt, Mutant, Verdict
from benchmarks.fuzz.score import Result
from benchmarks.fuzz.script import Call, Line, Script, Slot

SEEDS = range(150)


@cache
def made(seed: int) -> tuple[Script, Mutant]:
    script = programs.make(seed)
    mutant = mutations.mutate(script)
    assert mutant is not None
    return script, mutant


def test_a_seed_always_makes_the_same_program_and_the_same_bug() -> None:
    for seed in SEEDS[:30]:
        script = programs.make(seed)
        assert (script, mutations.mutate(script)) == made(seed)


def test_every_program_and_every_mutant_is_valid_python() -> None:
    for seed in SEEDS:
        script, mutant = made(seed)
        ast.parse(script.text)
        ast.parse(mutant.script.text)


def test_no_slot_is_left_open_in_the_text() -> None:
    for seed in SEEDS:
        script, mutant = made(seed)
        for text in (script.text, mutant.script.text):
            assert not [line for line in text.splitlines() if "<" in line.replace("rank < world", "")], text


def test_a_mutant_differs_from_its_program_only_around_its_guilty_lines() -> None:
    for seed in SEEDS:
        script, mutant = made(seed)
        before, after = script.text.splitlines(), mutant.script.text.splitlines()
        same_head = next(n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
        assert any(same_head <= line <= same_head + 7 for line in mutant.guilt.lines), (seed, same_head)
        assert len(after) - len(before) <= 4


def test_the_guilty_rank_comes_to_the_line_that_is_changed() -> None:
    for seed in SEEDS:
        script, mutant = made(seed)
        assert mutant.guilty_rank in range(script.world_size)
        assert any(mutant.guilty_rank in ranks for ranks in mutant.guilt.ranks) or len(mutant.guilt.ranks) > 1


def test_many_seeds_cover_every_part_and_most_mutations() -> None:
    parts = {part for seed in SEEDS for part in made(seed)[0].parts}
    assert len(parts) > 30
    assert len({made(seed)[1].mutation for seed in SEEDS}) > 20


def script_of(*lines: Line) -> Script:
    return Script(0, 3, (), lines)


EVERYONE = (0, 1, 2)
REDUCE = Call(
    "collective",
    EVERYONE,
    (EVERYONE,),
    {"x": Slot("total", {"mismatched-shape": "total[:-1]"})},
    instead={"mismatched-op": "dist.broadcast(total, 0)"},
)
LINE = Line(0, "dist.all_reduce(<x>)", REDUCE)


def mutants_of(script: Script, count: int = 300) -> dict[str, Mutant]:
    """By mutation: one mutant of it, found by trying seeds."""
    found = {}
    for seed in range(count):
        lines = (*script.lines, Line(0, "dist.destroy_process_group()"))
        mutant = mutations.mutate(Script(seed, script.world_size, (), lines))
        if mutant is not None:
            found[mutant.mutation] = mutant
    return found


MUTANTS = mutants_of(script_of(LINE, Line(0, "dist.barrier()", Call("collective", EVERYONE, (EVERYONE,)))))


@pytest.mark.parametrize(
    ("mutation", "kind", "text"),
    [
        ("mismatched-shape", "mismatched-shape", "total[:-1]"),
        ("mismatched-op", "mismatched-op", "dist.broadcast(total, 0)"),
        ("skip", "missing-rank", "if not (rank == "),
        ("repeat", "missing-rank", "if rank == "),
        ("swap", "order-swap", "else:"),
        ("receive", "p2p-against-collective", "dist.recv("),
        ("exit", "rank-exited-early", "sys.exit("),
        ("kill", "rank-killed", "os."),
        ("stop", "stopped-rank", "SIGSTOP"),
        ("sleep", "busy-rank", "("),
    ],
)
def test_each_mutation_knows_its_kind_rank_and_line(mutation: str, kind: str, text: str) -> None:
    mutant = MUTANTS[mutation]
    lines = mutant.script.text.splitlines()
    assert mutant.guilt.kinds[0] == kind
    assert frozenset({mutant.guilty_rank}) in mutant.guilt.ranks
    assert f"rank == {mutant.guilty_rank}" in mutant.script.text
    assert any(text in line for line in lines)
    assert all(1 <= number <= len(lines) for number in mutant.guilt.lines)


def test_a_verdict_is_right_only_with_kind_ranks_and_line() -> None:
    guilt = Guilt(("missing-rank", "mismatched-op"), (frozenset({2}),), frozenset({17, 18}))
    assert guilt.accepts(Verdict("mismatched-op", (2,), (4, 18)), has_ended=False) == (True, True, True)
    assert guilt.accepts(Verdict("order-swap", (1, 2), (4,)), has_ended=False) == (False, False, False)


def test_a_rank_that_left_out_a_call_may_be_named_for_its_end_once_it_has_ended() -> None:
    guilt = Guilt(("missing-rank",), (frozenset({2}),), frozenset({17}))
    said = Verdict("rank-exited-early", (2,), (17,))
    assert guilt.accepts(said, has_ended=True)[0]
    assert not guilt.accepts(said, has_ended=False)[0]


def test_in_a_group_of_two_naming_both_is_right() -> None:
    pair = (0, 1)
    line = Line(0, "dist.all_reduce(<x>)", Call("collective", pair, (pair,), REDUCE.slots))
    mutant = mutants_of(Script(0, 2, (), (line,)))["mismatched-shape"]
    assert frozenset({0, 1}) in mutant.guilt.ranks


def test_a_kept_script_has_the_same_lines_and_what_is_known_of_its_bug(tmp_path: Path) -> None:
    for seed in SEEDS[:30]:
        script, mutant = made(seed)
        kept.write(script, mutant, tmp_path / "bug.py")
        kept.write(script, None, tmp_path / "ok.py")
        bug = kept.read(tmp_path / "bug.py")
        assert bug.mutant is not None
        assert (bug.seed, bug.world_size) == (seed, script.world_size)
        assert (bug.mutant.mutation, bug.mutant.guilty_rank) == (mutant.mutation, mutant.guilty_rank)
        assert bug.mutant.guilt == replace(mutant.guilt, ranks=tuple(dict.fromkeys(mutant.guilt.ranks)))
        assert (tmp_path / "bug.py").read_text().startswith(mutant.script.text)
        assert kept.read(tmp_path / "ok.py").mutant is None


def test_the_matrix_shows_what_was_said_instead() -> None:
    _, mutant = made(3)
    guilt = mutant.guilt
    right = Verdict(guilt.kinds[0], tuple(guilt.ranks[0]), tuple(guilt.lines))
    results = [
        Result(3, mutant.mutation, "failed", got, mutant, guilt.accepts(got, has_ended=False))
        for got in (right, replace(right, lines=()), Verdict("straggler"))
    ]
    text = score.matrix(results)
    assert f"{guilt.kinds[0]} (other line) 1, straggler 1" in text or "straggler 1, " in text
    assert score.summary(results).startswith("1 of 3 bugs named with kind, ranks and line (33.3 %)")
