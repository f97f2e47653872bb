"""Snapshots: the state of a training in a folder, written while it runs, read back on any number of ranks.

snapshot       `Snapshot`: save and load
state          what a snapshot contains, by name
rng            the states of the random generators
staging        copies the state, so that training continues while it is written
writing        writes the copy on all ranks
storage        torch.distributed.checkpoint on files, without unpickling code
manifest       the checksums of a snapshot's files
directory      the folder of snapshots
select         which snapshot to continue from
upload         copies snapshots to another folder, beside the training
compatibility  whether it matches the model and the optimizer
"""
