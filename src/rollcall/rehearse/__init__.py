"""`rollcall rehearse`: runs a script as the ranks of a world that is not there, one process each, and never together.

A rank sees a CUDA device that computes nothing. What it does with other ranks is recorded into an ordinary ring. What
the ranks would have done to each other is found out afterwards, from the rings of all of them.

settings            what is rehearsed: world, hosts, the pretended GPU
pretended_cuda.cpp  the device, as far as torch's C++ asks for one
device              loads it, and replaces the functions of torch.cuda
tensors             a dispatch mode: tensors on the device have shapes and no data
values              the data of small tensors, where it is known; and what Python read without it being known
collectives         ops between ranks: what a rank gives is written down, what it gets is what all have given
combine             from what each rank gives to what each rank gets
patches             parts of torch that look at the data of tensors
files               files that a rank writes go to the folder of the run; connections are refused
walls               what cannot be rehearsed: a sentence
steps               stops a rank after some optimizer steps
rank                becomes one rank: environment, recording, the script
server              the process that ranks are forked from
passes              runs ranks again until what each got is what the others gave
stale               which ranks have to run again
replay              lets the recorded ranks wait for each other: what would hang, hangs
check               the same script on real gloo ranks (real_rank), compared op by op
rehearsal           all of it, in order
terminal            what was found, in words and as JSON
"""
