"""Ways to reach a host: each starts agents there and knows nothing else.

local       this machine
ssh         OpenSSH's own client; sync copies the working tree first
virtual     hosts of one machine, each with a network namespace of its own; shaping slows their links down
slurm       srun within an allocation; sbatch from outside
pbs         the hosts of a PBS job
kubernetes  the manifests of an Indexed Job; kubectl submits and follows it
callback    agents that a scheduler started connect to the launcher
"""
