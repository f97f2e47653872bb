"""Runs on each host: starts the ranks, watches them, ends them.

supervisor        first process on a host; answers the launcher until torch is imported, then watches the agent
main              the agent
worker_group      torch elastic's agent, with ranks from the fork server
rendezvous_store  hosts that agree among themselves, by a store
torchrun_plugin   rendezvous_store for plain torchrun
rendezvous_led    hosts that the launcher leads
heartbeat         reads the launcher's messages; reports a lost connection
host_info         what a host says of itself
connectivity      which address of the master is reached from here
output            passes on what ranks print
hang_detector     notices ranks that make no progress
stopped_ranks     notices ranks that were stopped by a signal
ring_upload       sends rings to a launcher that does not see this disk
fast_import/      a shorter import of torch
"""
