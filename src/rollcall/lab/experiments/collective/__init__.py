"""All ranks of a group make the same call."""
