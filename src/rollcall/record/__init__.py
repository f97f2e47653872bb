"""Every op of a rank, written down before it begins. The files:

layout    the format of a ring file, for those who write and those who read
ring      writing one: memory-mapped, so that what was written survives the process
sites     whose line of code made the op
hooks/    the only folder that touches torch's internals
tensors   what a record says of a tensor, of whatever kind
device    when ops on a GPU were over
stacks    where all threads are, on request
sampler   where the main thread is, when it is in no op for long
native/   what is done for every op, in C++, where that has been compiled
recorder  one per process: opens the ring, turns what hooks see into records
elsewhere recording where another launcher started the rank
phases    names that the program gives to its parts
"""
