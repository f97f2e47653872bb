"""What a rank does on request while its program runs.

requests     what was asked, and by whom it is done
stacks       the stacks of all threads
crashes      the line of a crash, which nobody has to ask for
profiler     torch.profiler for some steps
main_thread  has the main thread do something
"""
