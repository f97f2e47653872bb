"""`rollcall`, and `python -m rollcall`."""

import os
import sys

_INTERRUPTED = 130  # 128 and the number of SIGINT


def main() -> None:
    from rollcall.coordinator import early_agent  # here, and below: `python -m` imports this file before it is needed
    from rollcall.linux import standard_streams
    from rollcall.transport import local

    standard_streams.prepare()
    try:
        # Before anything else is imported: the agent needs a second to import torch.
        if sys.argv[1:2] in (["run"], ["train"]) and early_agent.begin(sys.argv, os.environ):
            _run_if_plain()
        from rollcall.cli.app import command

        command()
    except KeyboardInterrupt:  # a command other than run, which handles signals in its own way
        sys.exit(_INTERRUPTED)
    finally:
        local.end_early()


def _run_if_plain() -> None:
    """Run a plain command line without typer, which is slower than a warm start. Returns if typer must read it."""
    from rollcall.cli.run import fast_parse

    options = fast_parse.read(sys.argv[2:], os.environ)
    if options is not None:
        from rollcall.cli.run.command import run_and_exit

        run_and_exit(options)


if __name__ == "__main__":
    main()
