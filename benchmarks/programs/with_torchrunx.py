"""first_all_reduce.py on every host by torchrunx: with_torchrunx.py SSH_CONFIG RANKS_PER_HOST HOST…

torchrunx starts functions. This one runs the same script that the others start.
"""

import os
import runpy
import sys
from pathlib import Path

import torchrunx

PASSED_ON = ("ROLLCALL_BENCH", "GLOO_SOCKET_IFNAME")


def run(script: str) -> None:
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    ssh_config, ranks_per_host, *hosts = sys.argv[1:]
    torchrunx.Launcher(
        hostnames=hosts,
        workers_per_host=int(ranks_per_host),
        ssh_config_file=ssh_config,
        backend=None,  # the script makes its process group itself
        extra_env_vars={name: os.environ[name] for name in PASSED_ON},
    ).run(run, str(Path(__file__).with_name("first_all_reduce.py")))
