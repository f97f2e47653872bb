"""Runs in the fork server and in the ranks.

fork_server       imports torch once, then forks a process for each rank
fork_safety       whether forking is safe here
warm_server       a process that has imported torch, and forks a child for each use
installation      whether the files that a process has loaded are still the same
main              turns a fork into `python script.py`
fresh_interpreter lets a fresh interpreter take requests, too
numa_binding      binds a rank to the cores beside its GPU
agent_connection  a socket from a rank to its agent, for debuggers and prompts
debugger          pdb in a rank
traceback_filter  cuts rollcall's own frames off a traceback
"""
