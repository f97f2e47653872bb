"""Serves those who look at a run from outside while it runs.

watch_requests   `rollcall watch`: asks the agents for new records of their rings
stack_questions  `rollcall stacks`: asks the agents for the stacks of their ranks
events           tells a command of the user what happens to the run
monitor_process  starts the process that computes metrics and looks for stragglers
"""
