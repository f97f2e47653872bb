"""Starts one agent on one host, and knows nothing else.

select            which transport leads to the hosts of a plan
local             this machine
ssh, rsync        other machines; copying the folder there first
slurm, pbs        the nodes of an allocation
connect_back      agents that a scheduler started connect to the launcher
virtual_hosts     hosts on this machine, each with a network of its own
virtual_network   their network namespaces
traffic_shaping   their bandwidth and delay
"""
