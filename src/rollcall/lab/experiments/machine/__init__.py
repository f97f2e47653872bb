"""The ranks, hosts, backends and networks that are there."""
