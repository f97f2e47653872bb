"""Starting ranks. The files, in the order in which a run passes through them:

start       starts the agent, before anything else
options     the command line → a plan
plan        what runs where; devices counts its slots
launcher    shows what the ranks say (console, report), passes signals on; runs keeps the folder
agent       one per host: imports torch once (preload, safety), forks the server
forkserver  a child per rank
elastic     torch's agent on our ranks, meeting by rendezvous; output carries what they say
rank        a child becomes `python script.py` (title, frames)
supervise   who dies with whom; family ends what is left
messages    the words between launcher and agent
calls       functions on ranks, for spawn and the pytest plugin; callee is the other side
"""
