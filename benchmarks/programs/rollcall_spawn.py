"""first_all_reduce.py on ranks of rollcall.spawn: `python rollcall_spawn.py 4`."""

import runpy
import sys
from pathlib import Path

import rollcall


def rank_main(program: str) -> None:
    runpy.run_path(program)


if __name__ == "__main__":
    rollcall.spawn(rank_main, int(sys.argv[1]), [str(Path(__file__).with_name("first_all_reduce.py"))])
