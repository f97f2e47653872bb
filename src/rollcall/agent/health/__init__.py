"""What `rollcall doctor --deep` and `--preflight` check on a host. Runs there in a separate process, which then ends.

__main__    prints all results as JSON
nvml        GPUs, as NVIDIA's management library NVML reports them
speed       how fast its devices compute and copy memory; how fast its ranks reduce
system      disk, limits, load, InfiniBand
"""
