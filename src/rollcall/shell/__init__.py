"""`rollcall shell`, and notebooks: ranks that run what is typed, and keep their variables.

options             which ranks, and the arguments of `rollcall run` for them
prompt              IPython's prompt, which sends what is typed to the ranks
notebook            `%load_ext rollcall`: cells that run on the ranks
ranks               the ranks from the prompt's side: a run of its own, and one connection to each of them
session             one rank's side: runs what comes, and answers
notebook_output     what a rank of a notebook shows besides text
matplotlib_backend  shows figures of such ranks in the notebook
__main__            the program that the ranks run
"""
