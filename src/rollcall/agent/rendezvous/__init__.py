"""Where agents agree on each attempt: handlers for torch elastic.

by_launcher      the launcher decides, as it does for every run that it leads, on one host or many
by_hand          the launchers of several hosts, started by hand, agree through a store first
store            that agreement; also what plain torchrun gets
torchrun_plugin  the entry point for plain torchrun
"""
