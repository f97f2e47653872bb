"""What happened in a run, from its files alone: nothing here imports torch, or anything that starts ranks.

rings     one ring file → records and what they name
table     all ranks' records on one clock, a column per fact
load      the rings and run.json of one attempt → a run
calls     ops of all ranks that belong together
source    how two lines of a program stand to each other
waits     who waited for whom
costs     where communication takes its time
view      a run with what several looks need
looks/    what to look for, one file per sort of trouble
finding   something that was noticed: kind, ranks, call, sites, evidence
findings  all of them, the most telling first
verdict   the finding that explains the outcome, and what to change
show      all of it on a terminal
"""
