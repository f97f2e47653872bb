"""Runs in the fork server and in the ranks.

fork_server       imports torch once, then forks a process for each rank
fork_safety       whether forking is safe here
main              turns a fork into `python script.py`
traceback_filter  cuts rollcall's own frames off a traceback
"""
