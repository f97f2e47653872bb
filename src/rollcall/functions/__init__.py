"""Python functions on ranks: `rollcall.spawn`, pytest, the lab.

api     the public function
pool    a fork server that is kept for the next call
worker  the process at its other end
"""
