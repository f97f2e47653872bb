"""`rollcall bench`: how fast this network and backend are. The files, in the order in which a benchmark uses them:

settings    what to measure, and with which options; sizes: sizes in bytes, parsed
ranks       the program of every rank: decides how often each op is repeated, and collects the times
ops         each op: its buffers, one call, the expected result, nccl-tests' factor from algorithm to bus bandwidth
recorded    the calls of a recorded run, to be measured again
timed_loop  the loop that is timed
pairs       latency and bandwidth between each two hosts
results     everything that was measured, as JSON and CSV
mpi         the same ops with Open MPI, if it is installed
comparison  against an earlier run: which differences are larger than noise
terminal    tables; plot: a picture
"""
