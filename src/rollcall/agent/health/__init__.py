"""What `rollcall doctor --deep` and `--preflight` ask a host. Runs there in a process of its own, which ends.

__main__    prints all of it as JSON
nvml        GPUs, as NVIDIA's library for their management sees them
speed       how fast its devices compute, and copy memory; how fast its ranks reduce
system      disk, limits, load, InfiniBand
"""
