"""`rollcall rehearse`: runs a script as each rank of a large job on one machine, in a process for each rank.

A rank sees a CUDA device that computes nothing. Its ops with other ranks return at once, and are recorded into an
ordinary ring. A replay of the rings of all ranks then finds out which ranks would have waited for which.

settings            what is rehearsed: world, hosts, the pretended GPU
server              the process that ranks are forked from
rank/               what runs in each rehearsed rank
memory/             what a rank needs of its GPU's memory, and whether it fits
network/            what the ranks would send each other, between hosts
forked_ranks        runs some ranks
idle_ranks          ends ranks that wait forever
fixed_point         runs ranks again until each rank received what the others sent
consistency         which ranks received other values, and must run again
collective_results  computes what each rank receives from a collective
kinds               ranks that make the same calls; which ranks to run to find all kinds
replay              replays the recorded ops with waiting: ranks that would hang, hang
randomness          seeds of a rank: random numbers are the same in each pass
check               the same script on real gloo ranks (real_rank), compared op by op
rehearsal           all of it, in order
terminal            what was found, in words and as JSON
"""
