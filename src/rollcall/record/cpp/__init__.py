"""The recorder in C++: a phase of a DDP step and the usual op take about a tenth of the time that Python takes.

Where it is not compiled (rollcall.native does that), Python records alone.

In C++; each header includes only headers that stand above it:

cuda_driver.h   the calls of CUDA that most ops make
device_clock.h  when a GPU came to ops and completed them
state.h         what the parts below share
ring.h          writes records; the sampler's sleep
ask_python.h    asks Python for the numbers of names
sites.h         where in the program an op or a phase begins
phases.h        phases of the program, forwards of DDP modules, steps of optimizers
tensors.h       what a record says of a tensor
device_notes.h  has the clock of a GPU note the moments of ops
buckets.h       the all_reduces of DDP's reducer
ops.h           the ops that hooks see
calls.h         all_reduce and wait without a frame of Python
recorder.cpp    the compiled module of all these; `library` is that module, or None

In Python:

ring            a ring whose records C++ writes
recorder        a recorder whose frequent methods are in C++
calls           puts the calls of calls.h around the hooks
device_clock    the clock of a GPU
"""

from pathlib import Path

import torch  # noqa: F401  (first: the compiled module needs its libraries)

from rollcall import native

library = native.load(Path(__file__).with_name("recorder.cpp"))
