"""Real hosts on one machine: namespaces joined by a bridge, with sshd and SLURM in them.

Read in this order:

- `programs.py`: finding the programs, and starting daemons that end with us
- `claim.py`: a number no other pytest has now, and clearing what a killed one left
- `host.py`: a host: its processes, its files, its link
- `network.py`: the bridge, and the hosts on it
- `sshd.py`: a cluster: a network where every host answers ssh
- `slurm.py`: SLURM over the first hosts of a cluster
- `fixtures.py`: `cluster`, `hosts` and `slurm` for tests
"""
