"""`rollcall`, and `python -m rollcall`."""

import sys


def main() -> None:
    from rollcall.launch import start

    if sys.argv[1:2] == ["run"]:
        start.begin()  # before anything else is imported: the agent has a long way to go
    try:
        from rollcall.cli import command

        command()
    finally:
        start.abandon()


if __name__ == "__main__":
    main()
