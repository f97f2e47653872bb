"""What happened in a run, from its files alone: nothing here imports torch, or anything that starts ranks.

load      the rings and run.json of one attempt → values
calls     ops of all ranks that belong together
source    how two lines of a program stand to each other
waits     who waited for whom
findings  what was noticed: kind, ranks, call, sites, evidence
verdict   the finding that explains the outcome, and what to change
show      all of it on a terminal
"""
