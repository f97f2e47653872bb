"""Writes every op of a rank to its ring file, before the op begins. The files:

ring_format      the format of a ring file, for writers and readers
own_file         a file that stays open although the program may close it
ring             writes one; memory-mapped, so that what was written survives the process
recorder         the recorder of this process: begins it, and chooses between Python and C++
python_recorder  turns what hooks see into records
cpp/             the same in C++, for what happens most often, where that is compiled
hooks/           hooks into torch, which call the recorder
signatures       what an op is called with, as far as ranks must agree on it
tensors          describes any tensor
sites            the user's lines on a stack
sources          copies of the user's files, beside the rings
cuda_timing      when ops on a GPU completed
sampler          where the main thread is while it is in no op
on_request/      what a rank does when it is asked: stacks, a profile
attach           `rollcall.init(record=True)`: records a rank that another launcher started
autostart        the same without a change to the program, by ROLLCALL_RECORD
phases           names that the program gives to its parts
"""
