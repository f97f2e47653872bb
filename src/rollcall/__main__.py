"""`python -m rollcall` is `rollcall`."""

from rollcall.cli import main

main()
