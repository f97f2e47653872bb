"""`rollcall rehearse`: runs a script as the ranks of a world that is not there, one process each, and never together.

A rank sees a CUDA device that computes nothing. What it does with other ranks is recorded into an ordinary ring. What
the ranks would have done to each other is found out afterwards, from the rings of all of them.

settings            what is rehearsed: world, hosts, the pretended GPU
server              the process that ranks are forked from
rank/               what runs in each rehearsed rank
memory/             what a rank needs of its GPU's memory, and whether it fits
network/            what the ranks would send each other, between hosts
forked_ranks        runs some ranks
idle_ranks          ends ranks that wait without an end
fixed_point         runs ranks again until what each got is what the others gave
consistency         which ranks got something else, and have to run again
collective_results  from what each rank gives to a collective to what each rank gets
kinds               ranks that make the same calls; which ranks to run to find all kinds
replay              lets the recorded ranks wait for each other: what would hang, hangs
randomness          seeds of a rank: what is random is the same in each pass
check               the same script on real gloo ranks (real_rank), compared op by op
rehearsal           all of it, in order
terminal            what was found, in words and as JSON
"""
