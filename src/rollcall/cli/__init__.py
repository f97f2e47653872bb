"""Turns the command line into a plan or a job. Starts nothing itself.

app           all commands; `rollcall` enters here
run           `rollcall run`: from its options to a plan
run_options   those options, as one value
host_options  which hosts the options name, and how they are reached
submit        `--slurm` and `--kubernetes`: what is handed to the scheduler
doctor, bench, lab, train   one command each
tables        tables for the terminal
"""
