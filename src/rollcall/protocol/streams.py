"""The numbers of a rank's output streams, in messages and options."""

STDOUT, STDERR = 1, 2
