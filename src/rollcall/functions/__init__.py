"""Python functions on ranks: `rollcall.spawn`, pytest, the lab.

api     the public function
pool    calls a function on ranks; keeps the fork server for the next call
worker  the fork server, and a rank that it forks
"""
