"""Answers other processes that look at a run while it runs.

watch_requests   `rollcall watch`: asks the agents for new records of their rings
stack_questions  `rollcall stacks`: asks the agents for the stacks of their ranks
events           runs a command of the user for each event of the run
monitor_process  starts the process that computes metrics and looks for stragglers
"""
