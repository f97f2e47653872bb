"""Starts one agent on one host, and knows nothing else.

select              which transport starts the agents of a plan
connection          what every transport gives the launcher
local               this machine: an agent that was started before the command line was read
warm, warm_process  this machine: an agent that is forked from a warm server
ssh, rsync          other machines; copying the folder there first
slurm, pbs          the nodes of an allocation
connect_back        agents that a scheduler starts connect to the launcher
pipe                agents at the other end of a process: ssh, nsenter
supervisor_command  what is run on a host
virtual/            hosts on this machine, each with a network of its own
"""
