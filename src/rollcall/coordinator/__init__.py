"""Runs only in the launcher: starts the agents, decides on attempts, shows what ranks print, says how a run ended.

early_agent     has this machine's agent started before anything else, for its import of torch takes longest
launcher        one run from its first message to its exit code
attempts        the phases of a run, and when another attempt begins
hangs           notices that no rank makes progress, and explains why
agents          all agents of a run: started, heard, lost
preflight       what the hosts answered: who is missing, which versions differ, where the master is
heartbeats      pings hosts, and notices those that are silent
clock_offsets   how far the clocks of hosts are apart
console         what ranks print, by line and rank
failure         who failed first, and how that is told
run_folder      the folder of a run and its run.json
observers/      serves those who look at the run from outside: watch, stacks, metrics, a command for events
debugging/      serves who debugs the run: breakpoint(), attach, profile
other_launcher  runs a command whose ranks another launcher starts, and has them recorded
health          which hosts are bad, from their figures
healthy_hosts   checks the hosts of a run before it begins
doctor          checks hosts before they are needed
"""
