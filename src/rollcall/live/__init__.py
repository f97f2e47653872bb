"""A run while it goes on.

reader    reads what is new in the rings
state     what every rank does now
usage     processor and memory of ranks
terminal  `rollcall watch`
server    `rollcall watch --web`
"""
