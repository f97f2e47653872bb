"""What the ranks of a rehearsal would send each other over the network.

marks       in the rank: how many ops it had recorded at the end of each optimizer step
algorithms  which rank sends how many bytes to which, for each op: gloo's own algorithms, and nccl's rings and trees
traffic     from the recorded ops to bytes between hosts, in one step
link        the time of a step and the speed of a link, as the user gives them
estimate    how much communication takes longer than the computing that could hide it
"""
