"""`rollcall.init`: from whatever started this process to a process group that is complete.

environment    who started this process, and which rank it is
stores         where the ranks of a world meet
roll_call      every rank answers before a group is made
process_group  makes the group, and takes it down
waiting        waiting that ends
"""
