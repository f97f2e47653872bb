"""Options that several commands have: the same name, type and help text in each of them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rollcall.record.ring_format import MB_VARIABLE, MEGABYTES

SEVERAL_HOSTS = "Several hosts"


def host_option(name: str, help_text: str, metavar: str | None = None) -> Any:
    """An option that `--help` shows in the panel "Several hosts"."""
    return typer.Option(name, help=help_text, metavar=metavar, rich_help_panel=SEVERAL_HOSTS, show_default=False)


HostNames = Annotated[
    str | None,
    host_option(
        "--hosts", "Hosts and their number of ranks, in the order of the ranks; by ssh.", "a:3,user@b:3,node[01-04]"
    ),
]
HostFile = Annotated[
    Path | None, host_option("--hostfile", "The same from a file, one host per line: `a slots=3`, or `a:3`.", "FILE")
]
VirtualHosts = Annotated[
    int | None, host_option("--virtual-hosts", "Simulate N hosts on this machine, each with its own network.", "N")
]
LinkBandwidth = Annotated[str | None, host_option("--link", "Bandwidth between virtual hosts.", "1gbit")]
LinkDelay = Annotated[str | None, host_option("--delay", "One-way delay between virtual hosts.", "2ms")]
HostPython = Annotated[
    str, host_option("--python", "Path of Python on the hosts. Default: the path of this one.", "PATH")
]
RunName = Annotated[str | None, typer.Argument(help="The run: its name or folder. Default: the newest.", metavar="RUN")]
AttemptNumber = Annotated[int | None, typer.Option(help="Number of the attempt, from 0. Default: the last.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
RingMb = Annotated[
    int | None,
    typer.Option(
        "--ring-mb",
        help="Size of the recording of each rank, in megabytes. If it is full, the oldest ops are overwritten."
        " Default: 64.",
        metavar="MB",
        min=MEGABYTES[0],
        max=MEGABYTES[-1],
        envvar=MB_VARIABLE,
        show_envvar=False,
        show_default=False,
    ),
]
HangAfter = Annotated[
    float,
    typer.Option("--hang-after", help="If no rank makes progress for N seconds, explain why.", metavar="N"),
]
Preload = Annotated[
    list[str] | None,
    typer.Option("--preload", help="Import this module once for all ranks.", metavar="MODULE", show_default=False),
]
