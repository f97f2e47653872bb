"""Random numbers of a rank: the same in each pass and in the real ranks of --check, but different on each rank."""

import os
import random
import sys

import torch


def seed(rank: int) -> None:
    """Seeds the generators of a program that does not seed them itself."""
    random.seed(rank)
    torch.default_generator.manual_seed(rank)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(rank)


def replace_system_source(rank: int) -> None:
    """Replaces the random numbers of the system, from which secrets, uuid and new generators take theirs."""
    source = random.Random(rank)
    for module in (os, random):
        setattr(module, "urandom" if module is os else "_urandom", source.randbytes)
