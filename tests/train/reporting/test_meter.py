"""The mean loss over all samples."""

import math

import torch

from rollcall.train.reporting.meter import LossMeter


def test_losses_that_are_read_late_are_not_lost() -> None:
    """A meter that lags gives the losses of the call before; all of them, if asked to be complete."""
    meter = LossMeter(lags=True)
    for step, value in enumerate((1.0, 2.0, math.inf, 4.0)):
        meter.add(torch.tensor(value), 3, step)
        assert meter.collect(complete=step == 3)[1:] == [(0, -1), (3, -1), (3, -1), (6, 2)][step]
    assert meter.collect(complete=True) == (0, 0, -1)
