"""Private names of torch that the hooks of the recorder use: one entry per file."""
