"""The lab: experiments with measured verdicts. Each is one file that can be read by itself.

A file begins with the command and the question, and ends with an Experiment: what the ranks measure, how that is judged
and drawn.

experiments/ has one file for each, in folders by theme. They use experiment (what an experiment is), progress (counts
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
    "rehearsal": "training",
}
NAMES = tuple(EXPERIMENTS)
