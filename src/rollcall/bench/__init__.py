"""How fast is this network and backend. The files, in the order in which a benchmark passes through them:

options    the command line → settings, and a run of `ranks` as `rollcall run` would start it
settings   what is to be measured; sizes reads and writes sizes
ranks      the program of every rank: budget and agreement between the ranks
ops        each op: its buffers, one call, what must come out, nccl-tests' factor from algorithm to bus bandwidth
measuring  the timed loop
pairs      from each host to each other
results    all that was measured, for programs (JSON, CSV) and for a later --compare
mpi        the same ops by Open MPI, where it is installed
comparing  against an earlier run: what is beyond noise
showing    tables; plot: a picture
"""
