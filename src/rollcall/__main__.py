"""`rollcall`, and `python -m rollcall`."""

import os
import sys

_INTERRUPTED = 130  # 128 and the number of SIGINT


def main() -> None:
    from rollcall.coordinator import early_agent

    try:
        if sys.argv[1:2] in (["run"], ["train"]):
            # Before anything else is imported: the agent has a long way to go.
            early_agent.begin(elsewhere=early_agent.is_elsewhere(sys.argv, os.environ))
        from rollcall.cli.app import command

        command()
    except KeyboardInterrupt:  # a command other than run, which heeds signals in its own way
        sys.exit(_INTERRUPTED)
    finally:
        early_agent.abandon()


if __name__ == "__main__":
    main()
