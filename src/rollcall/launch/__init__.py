"""Starting ranks. The files, in the order in which a run passes through them:

start       starts an agent on this machine, before anything else (child: its process)
options     the command line → a plan (hosting: which hosts); elsewhere: → a job for a scheduler
plan        what runs where; hosts lists them, devices counts slots
launcher    shows what the ranks say (console, report), passes signals on; runs keeps the folder; watched: who looks on
lead        on several hosts: the roll call (answers), then one attempt after the other
crew        the agents of all hosts, each on a line of its own; reach chooses the way to them
ways/       one small file per way to reach a host
host/       what runs on each of them
messages    the words between launcher and agents
doctor      the roll call alone, without a run
calls       functions on ranks, for spawn and the pytest plugin; callee is the other side
"""
