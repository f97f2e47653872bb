"""Gloo's threads, whom torch leaves to themselves.

partings    they let go of everything before their group is destroyed
yielding    the one that listens lets others go first, where it would only spin (yielding.cpp)
"""
