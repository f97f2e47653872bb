"""`python -m rollcall.train`: one rank of a training under any launcher; takes the options of `rollcall train`."""

import sys

from rollcall.errors import install_error_hook
from rollcall.train.recipes.config import TrainConfig

if __name__ == "__main__":
    install_error_hook()
    config = TrainConfig.from_args(sys.argv[1:])
    config.check_source()

    # Late: it imports torch, and the checks above need none.
    from rollcall.train.recipes.program import run

    run(config)
