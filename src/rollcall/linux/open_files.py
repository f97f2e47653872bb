"""How many files this process may have open."""

import os
import resource

_NO_LIMIT = 1 << 30


def allow(count: int) -> int:
    """Raise the limit to this number, or to the hard limit if that is lower. Returns the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return _NO_LIMIT if soft == resource.RLIM_INFINITY else soft


def count() -> int:
    """How many are open now."""
    return len(os.listdir("/proc/self/fd"))
