"""Hosts on this machine, each with a network of its own.

hosts            the hosts: names, addresses, and the command that enters one
network          their network namespaces
traffic_shaping  their bandwidth and delay
"""
