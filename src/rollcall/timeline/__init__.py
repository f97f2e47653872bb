"""The timeline of the report and of the live page: one lane per rank, a bar per op.

model   bars, phases and samples of all attempts on one axis
encode  the same as short texts for the browser
"""
