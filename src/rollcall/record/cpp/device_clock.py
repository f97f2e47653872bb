"""The clock of a GPU, in C++: an op runs no Python for it, and the thread that asks for its times needs no GIL."""

import torch

from rollcall.record import cuda_timing
from rollcall.record.cpp import library
from rollcall.record.cuda_timing import CudaEvents, DeviceClock
from rollcall.record.ring import Ring

# What torch.cuda itself calls: a C function. A torch without CUDA may not have it.
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)


class CppDeviceClock(DeviceClock):
    first_device = library.first_device
    note = library.note_on_device

    def __init__(self, ring: Ring, cuda: CudaEvents | None = None) -> None:
        super().__init__(ring, cuda)
        library.follow_device(_is_capturing if _is_capturing and cuda is None else self._cuda.is_capturing)

    def _settle(self) -> None:
        library.settle_device(cuda_timing.BASE_AGE_NS)

    def _settle_in_notes(self) -> None:
        library.settle_in_ops(cuda_timing.BASE_AGE_NS)
