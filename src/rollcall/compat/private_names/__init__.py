"""Private names that other folders use and that cannot move here (a hook, a method of a subclass): one entry per file.

recorder/  names of torch that the hooks of the recorder use
python/    names of CPython
"""
