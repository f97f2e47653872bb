"""`rollcall attach`: from its options to a debugger at a rank of a running job."""

import socket
from typing import Annotated

import typer

from rollcall.cli.shared_options import RunName
from rollcall.errors import UsageError


def attach(
    run: RunName = None,
    rank: Annotated[str, typer.Option(help="The rank; with --debugpy also 0,2-3, or all.", metavar="RANK")] = "all",
    debugpy: Annotated[
        bool, typer.Option("--debugpy", help="Start debugpy in the ranks, and print a port for each rank, for VS Code.")
    ] = False,
) -> None:
    """Debug a rank of a running job: it stops after its next op, and pdb's prompt opens here.

    The other ranks wait; rollcall does not report this as a hang.
    `quit` leaves the debugger, and the rank continues.
    If a rank is in C++, for example in an op that hangs, you can inspect it, but not step through it.

    [bold]Examples[/]

      rollcall attach --rank 2

      rollcall attach --debugpy
    """
    from rollcall.live import attach as live_attach
    from rollcall.protocol.rank_ranges import read_ranks
    from rollcall.runs import find_run

    ranks = read_ranks("--rank", rank)
    folder = find_run(run)
    if debugpy:
        _print_ports(live_attach.listen(folder, ranks))
    elif ranks is None or len(ranks) != 1:
        raise UsageError(f"--rank {rank} is not one rank: name the rank to debug, as in --rank 2")
    else:
        live_attach.attach(folder, ranks[0])


def _print_ports(ports: dict[int, tuple[str, int]]) -> None:
    for rank, (host, port) in ports.items():
        there = "" if host == socket.gethostname() else f"   ssh -L {port}:127.0.0.1:{port} {host}"
        print(f"rank {rank}: 127.0.0.1:{port} on {host}{there}")
