"""The lab: experiments with measured verdicts. Each is one file that can be read by itself.

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

experiments/ has one file for each, in folders by theme. They use experiment (the values above), progress (counts
trials), measuring (times and bytes) and plots (pictures). runner/ has the machinery.
"""

# Each with its folder, in the order in which to read them.
EXPERIMENTS = {
    "hello": "machine",
    "barrier": "collective",
    "send": "messages",
    "isend": "messages",
    "collectives": "collective",
    "groups": "collective",
    "ring": "collective",
    "gradients": "training",
    "overlap": "training",
    "backends": "machine",
    "bandwidth": "machine",
    "straggler": "training",
    "deadlock": "messages",
    "mismatch": "collective",
    "hosts": "machine",
    "scaling": "training",
}
NAMES = tuple(EXPERIMENTS)
