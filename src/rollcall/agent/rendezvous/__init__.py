"""Where agents agree on each attempt: handlers for torch elastic.

by_launcher      one launcher for all hosts decides: every run that is not started by hand on several hosts
by_hand          each host has a launcher that was started by hand; they agree through a store first
store            this agreement; also the rendezvous for plain torchrun
torchrun_plugin  the entry point for plain torchrun
"""
