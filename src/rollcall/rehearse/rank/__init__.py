"""What runs in a rehearsed rank.

main                becomes one rank: environment, recording, the script
pretended_cuda.cpp  the device, as far as torch's C++ asks for one
device              loads it, and replaces the functions of torch.cuda
tensors             a dispatch mode: tensors on the device have shapes and no data
data_shapes         ops whose result has a shape that depends on data
values              the data of small tensors, where it is known; and what Python read without it being known
collectives         ops between ranks: what a rank gives is written down, what it gets is what all have given
patches             parts of torch that look at the data of tensors
store               the store of a process group
starting            programs that start their own ranks, and rollcall.init
saving              torch.save, torch.load and safetensors
files               files that a rank writes go to the folder of the run; connections are refused
unsupported         what cannot be rehearsed: a sentence
clock               time, as the program reads it
steps               stops a rank after some optimizer steps
"""
