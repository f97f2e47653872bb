"""`rollcall`, and `python -m rollcall`."""

import os
import sys

_INTERRUPTED = 130  # 128 and the number of SIGINT


def main() -> None:
    from rollcall.coordinator import early_agent
    from rollcall.linux import standard_streams
    from rollcall.transport import local

    standard_streams.prepare()
    try:
        # Before anything else is imported: the agent has a long way to go.
        if sys.argv[1:2] in (["run"], ["train"]) and early_agent.begin(sys.argv, os.environ):
            _run_if_usual()
        from rollcall.cli.app import command

        command()
    except KeyboardInterrupt:  # a command other than run, which handles signals in its own way
        sys.exit(_INTERRUPTED)
    finally:
        local.end_early()


def _run_if_usual() -> None:
    """A warm `rollcall run` with nothing unusual: returns if the whole command line is needed to read it."""
    from rollcall.cli.run import fast_parse

    options = fast_parse.read(sys.argv[2:], os.environ)
    if options is not None:
        from rollcall.cli.run.command import run_and_exit

        run_and_exit(options)


if __name__ == "__main__":
    main()
