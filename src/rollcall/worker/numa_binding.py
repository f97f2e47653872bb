"""Binds a rank to the CPU cores near its GPU, by torch's own functions: the affinity is the same as under torchrun."""

import os
import sys


def bind(mode: str, local_rank: int) -> None:
    """Binds this process, and so a program that takes its place. A rank that cannot be bound does not start."""
    # Here: most runs bind nothing.
    from torch.numa import binding

    try:
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        binding._maybe_apply_numa_binding_to_current_process(gpu_index=local_rank, numa_options=options)
    except Exception as error:  # also an older torch that has no such function
        print(f"rollcall: --numa-binding {mode} cannot bind the rank of GPU {local_rank} ({error})", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
