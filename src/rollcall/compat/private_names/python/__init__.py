"""Private names of CPython: one entry per file."""
