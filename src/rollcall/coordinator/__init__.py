"""Runs only in the launcher: starts the agents, decides on attempts, shows what ranks print, says how a run ended.

early_agent     starts this machine's agent before anything else, because its import of torch takes longest
launcher        one run from its first message to its exit code
attempts        the phases of a run, and when another attempt begins
hangs           notices that no rank makes progress, and explains why
agents          all agents of a run: starts them, reads their messages, notices lost ones
preflight       what the hosts answered: who is missing, which versions differ, where the master is
heartbeats      pings hosts, and notices those that are silent
clock_offsets   how far the clocks of hosts are apart
console         what ranks print, by line and rank
failure         which rank failed first, and the message about it
run_folder      the folder of a run and its run.json
observers/      answers watch and stacks, serves metrics, runs a command for events
debugging/      answers breakpoint(), attach, profile and shell
other_launcher  runs a command whose ranks another launcher starts, and records them
health          which hosts are bad, from their figures
healthy_hosts   checks the hosts of a run before it begins
doctor          checks hosts before they are needed
"""
