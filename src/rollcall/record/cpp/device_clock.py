"""The clock of a GPU, in C++: an op runs no Python for it, and the thread that asks for its times needs no GIL."""

from contextlib import suppress

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
        self._has_driver: bool | None = None  # None: there was nothing to call it for
        library.follow_device(
            _is_capturing if _is_capturing and cuda is None else self._cuda.is_capturing, self._find_handle
        )

    def _find_handle(self, device: int) -> int | None:
        """The driver's, of the current stream; None where C++ cannot call the driver, and calls torch instead."""
        if self._has_driver is None:
            path, self._has_driver = self._cuda.driver(), False
            if path is not None:
                with suppress(OSError):  # it lacks a function
                    library.use_driver(path)
                    self._has_driver = True
        return self._cuda.stream_handle(device) if self._has_driver else None

    def _settle(self) -> None:
        library.settle_device(cuda_timing.BASE_AGE_NS)

    def _settle_in_notes(self) -> None:
        library.settle_in_ops(cuda_timing.BASE_AGE_NS)
