"""`rollcall run`: from the command line to a plan, or to a job of a scheduler.

command     reads the options, makes the plan, and starts it
options     all options, as one value
fast_parse  reads common command lines without typer, for warm starts
submit      `--slurm` and `--kubernetes`: hands the run to a scheduler
"""
