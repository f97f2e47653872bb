"""`python -m rollcall.agent.health FOLDER`: checks this host, and prints the results as JSON."""

import json
import sys

from rollcall.agent.health import nvml, system


def main(folder: str) -> None:
    # Before anything is computed here: these must not see the checks themselves.
    facts = {**system.facts(folder), **nvml.facts()}
    from rollcall.agent.health import speed  # here: it imports torch

    print(json.dumps({**facts, **speed.facts()}), flush=True)


main(sys.argv[1])
