"""`rollcall.init`: from whatever started this process to a complete process group.

current_rank   the rank of this process, with or without a group
environment    which launcher started this process, and which rank it is
placement      which host a rank runs on, and its number there
stores         the store that the ranks of one world share
roll_call      every rank registers before the group is made
process_group  makes the group, and destroys it
waiting        waiting with a time limit
"""
