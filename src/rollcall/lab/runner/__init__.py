"""Runs experiments. The files, in the order in which a command passes through them:

perform          one experiment, or all: check the settings, measure, judge, draw, print
worlds           starts the ranks, here or on virtual hosts, and collects what they return
on_rank          what each rank does: join the world, measure, and one more trial for the recording
existing_ranks   the same on ranks that torchrun or `rollcall run` has started
by_hand          the same on nodes that are started one by one: node (their flags), node_rendezvous (they agree)
run_folder       what the run's folder holds for `rollcall report` and `rollcall explain`
terminal, pages  the verdict on a terminal, and the pages in docs/lab
"""
