"""An unknown that Python reads is noted with its line, and with what the program does with it."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollcall.rehearse.rank import values

HERE = Path(__file__).name


@pytest.fixture
def notes() -> Iterator[values.Notes]:
    before, made = values.notes, values.Notes({})
    values.use_notes(made)
    yield made
    values.use_notes(before)


def only(notes: values.Notes) -> values.UnknownValue:
    (found,) = notes.unknowns.values()
    return found


def test_a_value_that_is_only_printed_decides_nothing(notes: values.Notes) -> None:
    loss = values.read(torch.float32)
    assert f"{loss / 4:.3f} {sum([loss, loss])}" == "0.250 2.0"
    assert only(notes).decided == set()


def test_a_value_that_is_compared_decides_on_that_line(notes: values.Notes) -> None:
    loss = values.read(torch.float32)
    _ = loss * 2 < 3
    assert {place.partition(":")[0] for place in only(notes).decided} == {HERE}


def test_an_unknown_flag_can_only_be_decided_by(notes: values.Notes) -> None:
    assert values.read(torch.bool) is False
    assert only(notes).decided


def test_reads_of_one_line_are_counted_together(notes: values.Notes) -> None:
    for _ in range(3):
        values.read(torch.int64)
    assert only(notes).reads == 3


def test_an_assumption_is_taken_for_its_line(notes: values.Notes) -> None:
    values.read(torch.float32)
    line = only(notes).line + 3
    notes.assumptions[f"{HERE}:{line}"] = 0.5
    assert values.read(torch.float32) == 0.5


def test_an_unknown_number_is_a_plain_one_for_other_processes(notes: values.Notes) -> None:
    assert type(pickle.loads(pickle.dumps(values.read(torch.float32)))) is float


def test_a_value_that_other_ranks_are_told_may_decide_there(notes: values.Notes) -> None:
    loss = values.read(torch.float32)
    pickle.dumps(copy.deepcopy({"loss": loss}))  # as it is saved
    assert only(notes).decided == set()
    with values.telling():
        pickle.dumps({"loss": loss})
    assert only(notes).decided


def test_values_are_found_in_the_arguments_of_a_tensor(notes: values.Notes) -> None:
    loss = values.read(torch.float32)
    assert list(values.noted_in(([1.0, (2, loss)], 3))) == [only(notes)]
