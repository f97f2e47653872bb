"""Values that the launcher and the agents share. Imports nothing else of rollcall but its errors and units.

plan           what runs where: a pure, printable value
hosts          a host and its slots; host lists and host files
host_list      expands what schedulers write: node[01-03]
devices        how many ranks a host gets: a number, or one for each GPU or core
messages       what launcher and agent send each other
channel        how that is framed on a byte stream, and the lines that an agent prints before
connect_back   agents that connect to the launcher, because a scheduler has started them
timing         times that both sides agree on
rank_stack     where a rank is
exit_codes     exit codes and signals in words
first_failure  which of several failures came first
rank_ranges    ranks in words: 0-3,7
log_files      where each rank's output goes, and writing it there
torchrun_env   the variables by which a launcher tells a rank its number and its store
scheduler_env  what the variables of schedulers say
"""
