"""`python -m rollcall.train`: one rank of a training, for launchers of any kind; the options are `rollcall train`'s."""

import sys

from rollcall.errors import install_error_hook
from rollcall.train.config import Recipe

if __name__ == "__main__":
    install_error_hook()
    recipe = Recipe.of_words(sys.argv[1:])

    from rollcall.train.program import run

    run(recipe)
