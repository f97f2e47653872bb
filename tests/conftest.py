import signal

from tests.cluster.fixtures import cluster, hosts, slurm  # noqa: F401

# Who runs us in the background has these ignored for all that we start, and Ctrl-C is something that tests try.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
