"""What a step frees, the next one needs again. On a GPU torch keeps it; on the CPU it goes back to the kernel, which
hands it out anew, in pages of zeros, every step: a transformer of ten million parameters loses 3 to 5 % to that."""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGE_BYTES = 32 << 20  # what is larger comes and goes as before: the most that glibc itself would grow to
_MOST_KEPT_BYTES = (1 << 31) - 1


def keep_freed() -> None:
    """Keep freed memory for the next step, up to 2 GiB. Who has tuned malloc, or has no glibc, is left alone."""
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT_BYTES)
