"""Runs on each host: starts the ranks, watches them, ends them.

supervisor      first process on a host that is reached over a network; answers the launcher, then watches the agent
hand_over       hands the host over from the supervisor to the agent
main            the agent
host_check      starts a process that checks this host
health/         that process: GPUs, speeds, limits
host_questions  answers the launcher's questions about this host
dispatcher      hands each message of the launcher to the part that it concerns
worker_group    torch elastic's agent, with ranks from the fork server
heartbeat       reads the launcher's messages; reports a lost connection
host_info       what a host reports about itself
rank_answers    answers the launcher's questions about ranks: stacks, records, requests
rank_connections  passes data between ranks and terminals
host_folder     the run's folder, as this host sees it
connectivity    which address of the master this host can reach
connect_back    connects to the launcher, if a scheduler started this host's agent
rendezvous/     where agents agree on each attempt
monitoring/     output, hangs and stopped ranks
fast_import/    a shorter import of torch
warm/           a server that has imported torch, and forks agents for later runs
"""
