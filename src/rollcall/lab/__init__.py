"""The lab: experiments with measured verdicts. Each is one file that can be read, and run, by itself.

An experiment file has

- a docstring: its command, and then the question that it answers
- measure: what every rank does; returns plain values
- judge: the results of all ranks → a verdict: a sentence, numbers, claims that hold or do not
- draw: the same results → a picture
- TRIALS, and LEAST_RANKS where two are not enough, or one is
- CODE_ON_PAGE: the functions that its page shows, in the order in which to read them
- CASES: only where each case needs ranks of its own, since it may crash, hang, or run on other hosts
- once: only where the experiment prints lines of its own when it is run once, node by node
- REPORTED_CASE, REPORTED_WITH: what `rollcall report` shows, if not the last case, or not with the user's options

experiments/ has one file for each. They use experiment (the values above), progress (counts trials), measuring
(times and bytes) and plots (pictures). runner/ has the machinery.
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
