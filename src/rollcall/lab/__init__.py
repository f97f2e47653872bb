"""The lab: experiments with measured verdicts. Each is one file that can be read, and run, by itself.

An experiment file has

- QUESTION: what it answers, in a sentence
- measure: what every rank does; returns plain values
- judge: the results of all ranks → a verdict: a sentence, numbers, claims that hold or do not
- draw: the same results → a picture
- WALK, NEXT: for its page: the functions to read, in order; what to try next
- ARMS: only where each arm needs a world of its own, since it may crash, hang, or sit on other hosts
- once: only where the origin's program has words of its own
- SHOWN_ARM, SHOWN_WITH: what `rollcall report` shows, where it is not the last arm, or not all that is measured

What they share, in the order of use: options (the command line), experiment (the values above), perform (on ranks
of its own) or in_world (torchrun's) or by_hand (node by node, which meet at a door), worlds (how ranks are
started), meeting (of a rank with the others), progress (how far they are), recording (what the report shows), wire
(bytes sent), show, pictures, pages.
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
