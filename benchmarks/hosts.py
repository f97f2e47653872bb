"""Run with `make bench-hosts`, or: .venv/bin/python benchmarks/hosts.py --json figures.json

Measures, in one run on this machine, what `rollcall` promises for many hosts:

    start      8 ssh hosts × 2 ranks: from the command to the end of the first all_reduce, against torchrunx and
               against torchrun started by hand, by one ssh per host at once
    control    16, 64 and 256 agents that start no ranks: how soon they have answered, and the launcher's memory
    faults     a rank or one of 3 hosts is lost, by ssh, in SLURM and on virtual hosts: how soon is the next step of all
               ranks done? Against torchrun's elastic restart
    preflight  20 times `rollcall doctor --deep` on 4 healthy hosts, once with a slow one: alarms, and how long it takes

The hosts are network namespaces with an sshd in each, which needs root. All of them share the cores of this machine,
so that only the ratios tell something, and only if nothing else runs. All of it takes about a quarter of an hour on two
cores.
A part of it: --only control. A quick look at whether everything works:

    --hosts 2 --ranks-per-host 1 --repeats 1 --agents 4 --losses 1 --preflights 1
"""

import argparse
import os
import sys

from sections import control_plane, faults, hosts_start, preflight
from session import Section, count, parser, run_sections

SECTIONS: dict[str, Section] = {
    "start": hosts_start.measure,
    "control": control_plane.measure,
    "faults": faults.measure,
    "preflight": preflight.measure,
}
MOST_HOSTS = 64
MOST_AGENTS = 1000


def main() -> int:
    options = read_options()
    if {"start", "faults", "preflight"} & set(options.only or SECTIONS) and os.geteuid() != 0:
        sys.exit("the hosts are network namespaces, which need root: be root, or use --only control")
    return run_sections(SECTIONS, options)


def read_options() -> argparse.Namespace:
    options = parser(__doc__, SECTIONS)
    add = options.add_argument
    add("--hosts", type=count, default=8, help=f"start: number of hosts (8; at most {MOST_HOSTS})")
    add("--ranks-per-host", type=count, default=2, help="start: number of ranks on each (2)")
    add("--repeats", type=count, default=3, help="start: repeats of each launcher, in turn (3)")
    add("--agents", type=count, nargs="+", default=[16, 64, 256], help="control: numbers of agents (16 64 256)")
    add("--losses", type=count, default=3, help="faults: tries of each (3)")
    add("--preflights", type=count, default=20, help="preflight: how many on healthy hosts (20)")
    add("--timeout-s", type=float, default=180.0, help="the longest that any command may take (180)")
    found = options.parse_args()
    if found.hosts > MOST_HOSTS or max(found.agents) > MOST_AGENTS:
        options.error(f"at most {MOST_HOSTS} hosts and {MOST_AGENTS} agents")
    return found


if __name__ == "__main__":
    sys.exit(main())
