"""A warm start: a server that has torch imported before a run begins, and gives each run its agent.

server        the server: keeps ready, answers `rollcall run` and `rollcall warm`
run           one run: an agent that is forked from the server, and the process that cleans up behind it
"""
