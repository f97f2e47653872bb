"""What runs on a host. The files, in the order in which a run passes through them:

keeper      on a host among several: answers the roll call (presence, routes), forks the agent, stays beside it
ahead       the way to torch, shorter (codes, quick)
agent       imports torch once (preload, safety, names), forks the server
ear         the agent hears the launcher, and notices when there is nothing left to hear
forkserver  a child per rank
elastic     torch's agent on our ranks; output carries what they say, stalls notices those that were stopped,
            hangs when none gets any further, tails shows their rings to who watches from elsewhere
rendezvous  agents started by hand agree among each other on each attempt …
guided      … those that a launcher leads are told
rank        a child becomes `python script.py` (title, frames)
supervise   who dies with whom; family ends what is left
"""
