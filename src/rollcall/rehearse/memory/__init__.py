"""What a rank of a rehearsal needs of its GPU's memory.

allocator       a model of torch's caching allocator: blocks, segments, what it reserves
attention       which kernel of attention a GPU would run
workspaces      what kernels take besides their results
allocations     in the rank: follows every storage on the device, by category; the peak and its line
cuda_functions  in the rank: torch.cuda.memory_allocated and the like
use             in the launcher: what the ranks need, whether it fits, in words and as JSON
"""
