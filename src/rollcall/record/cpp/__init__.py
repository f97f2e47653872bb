"""The recorder in C++: a phase of a DDP step takes a tenth of the time that Python takes, an op two thirds.

Where it is not compiled (rollcall.native does that), Python records alone.

recorder.cpp    writes records; `library` is the compiled module, or None
device_clock.h  when ops on a GPU completed; a part of the same module
cuda_driver.h   the calls of CUDA that most ops make
ring            a ring whose records C++ writes
recorder        a recorder whose frequent methods are in C++
calls           all_reduce and wait without the Python of their hooks
device_clock    the clock of a GPU
"""

from pathlib import Path

import torch  # noqa: F401  (first: the compiled module needs its libraries)

from rollcall import native

library = native.load(Path(__file__).with_name("recorder.cpp"))
