"""`rollcall shell`: a prompt on all ranks.

prompt   IPython's prompt, which sends what is typed to the ranks
ranks    the ranks from the prompt's side: a run of its own, and one connection to each of them
session  one rank's side: runs what comes, and answers
__main__ the program that the ranks run
"""
