from tests.cluster.fixtures import cluster, hosts, slurm  # noqa: F401
