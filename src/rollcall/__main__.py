"""`rollcall`, and `python -m rollcall`."""

import os
import sys

_INTERRUPTED = 130  # 128 and the number of SIGINT


def main() -> None:
    from rollcall.coordinator import early_agent
    from rollcall.transport import local

    try:
        if sys.argv[1:2] in (["run"], ["train"]):
            # Before anything else is imported: the agent has a long way to go.
            early_agent.begin(sys.argv, os.environ)
        from rollcall.cli.app import command

        command()
    except KeyboardInterrupt:  # a command other than run, which handles signals in its own way
        sys.exit(_INTERRUPTED)
    finally:
        local.end_early()


if __name__ == "__main__":
    main()
