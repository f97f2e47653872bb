"""Snapshots: what is saved, where, and how it is read again."""
