"""A warm start: a server that has imported torch before a run begins, and forks the agent of each run.

server        the server: answers `rollcall run` and `rollcall warm`
run           one run: an agent that is forked from the server, and the process that ends what the agent leaves
"""
