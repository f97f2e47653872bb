"""Models of which each rank holds a part (FSDP2, HSDP, tensor parallel).

options    `Fsdp`: how to share the model
units      which modules are gathered one at a time
mesh       the ranks as a grid: replicas × shards × tensor parallel
plan       tensor parallel by a plan of the user's or the model's own
apply      applies all of that to a model
clipping   the norm of gradients of which each rank has a part

torch.distributed.fsdp and .tensor are imported inside functions: a model that is not sharded starts without them.
"""
