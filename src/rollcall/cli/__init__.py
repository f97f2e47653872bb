"""Turns the command line into a plan or a job. Starts nothing itself.

Each command imports what it needs inside its function, so that `rollcall --help` and `rollcall run` start fast.

app             all commands; `rollcall` enters here
run/            `rollcall run`
attach, bench, doctor, lab, profile, record, rehearse, shell, stacks, train, warm   one command each
host_options    which hosts the options name, and how they are reached
shared_options  options that several commands have
tables          tables for the terminal
"""
