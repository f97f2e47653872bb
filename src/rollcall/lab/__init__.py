"""The lab: experiments with measured verdicts. Each is one file that can be read, and run, by itself.

An experiment file has

QUESTION        what it answers, in a sentence
measure         what every rank does; returns plain values
judge           results of all ranks → a verdict: a sentence, numbers, claims that hold or do not
draw            the same results → a picture
WALK, NEXT      for its page: the functions to read, in order; what to try next
ARMS            only where each arm needs a world of its own, since it may crash, hang, or sit on other hosts
once            only where the origin's program has words of its own

What they share: experiment (the values above), options (the command line), perform (which way an experiment is
run), worlds (its ranks), by_hand (nodes that are started one by one), show, pictures, pages.
"""

NAMES = (
    "hello",
    "barrier",
    "send",
    "isend",
    "collectives",
    "groups",
    "ring",
    "gradients",
    "overlap",
    "backends",
    "bandwidth",
    "straggler",
    "deadlock",
    "mismatch",
    "hosts",
    "scaling",
)
