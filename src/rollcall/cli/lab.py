"""`rollcall lab`: experiments on ranks that it starts, on ranks of another launcher, or started node by node."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rollcall.cli.shared_options import VirtualHosts
from rollcall.errors import UsageError

_LARGEST_IN_ALL = "64MB"  # of bandwidth in `rollcall lab all`
_OF_ALL = "-n, --trials, --backend, --virtual-hosts, --json and --no-picture"
_BY_HAND = "Run it once, node by node, with the flags of torch.distributed.launch"


def _node_flag(help_text: str, name: str) -> Any:
    """A flag that can be written with underscores and with dashes."""
    names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
    return typer.Option(*names, help=help_text, rich_help_panel=_BY_HAND, show_default=False)


def lab(
    name: Annotated[
        str,
        typer.Argument(
            help="The experiment; 'all' runs all of them. Default: list them.", show_default=False, metavar="EXPERIMENT"
        ),
    ] = "",
    ranks: Annotated[
        int | None, typer.Option("-n", help="Ranks on each host. Default: 4 in all.", show_default=False)
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Number of trials. Default: the experiment's own.", show_default=False)
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="gloo or nccl. Default: nccl if each rank has a GPU.", show_default=False)
    ] = None,
    virtual_hosts: VirtualHosts = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything that was measured as JSON.")] = False,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Draw no picture.")] = False,
    case: Annotated[
        str | None,
        typer.Option(
            "--case",
            "--arm",
            help="Run only this case; for ranks of torchrun or rollcall run, or node by node.",
            show_default=False,
        ),
    ] = None,
    largest: Annotated[
        str | None, typer.Option(help="For the experiment bandwidth: largest size, such as 64MB.", show_default=False)
    ] = None,
    results: Annotated[Path | None, typer.Option(hidden=True)] = None,
    master_addr: Annotated[str | None, _node_flag("Address of node 0.", "master_addr")] = None,
    master_port: Annotated[
        int | None, _node_flag("Port of node 0; if it is in use, the next free one.", "master_port")
    ] = None,
    nnodes: Annotated[int | None, _node_flag("Number of nodes.", "nnodes")] = None,
    nproc_per_node: Annotated[int | None, _node_flag("Ranks on each node.", "nproc_per_node")] = None,
    node_rank: Annotated[int | None, _node_flag("Number of this node, from 0.", "node_rank")] = None,
    world_size: Annotated[int | None, _node_flag("Number of ranks of all nodes together.", "world_size")] = None,
    init_method: Annotated[str | None, _node_flag("env://, tcp://host:port or file:///path.", "init_method")] = None,
    run_with_no_barrier: Annotated[
        bool, _node_flag("For the experiment barrier: leave the barrier out.", "run_with_no_barrier")
    ] = False,
) -> None:
    """Run experiments on real ranks. Each asks a question, measures the answer, and draws it.

    [bold]Examples[/]

      rollcall lab

      rollcall lab barrier

      rollcall lab ring -n 3 --trials 20 --json

      rollcall lab bandwidth --virtual-hosts 2 -n 2

      rollcall lab all

      rollcall lab barrier --nnodes=2 --node_rank=0 --master_addr=alpha   (on the other host --node_rank=1)
    """
    from rollcall.initialization import environment
    from rollcall.lab.experiment import Experiment, LabSettings, check_name, load
    from rollcall.lab.runner import existing_ranks, perform, terminal, worlds

    if not name:
        terminal.list_experiments(json)
        return
    options = _given(largest=largest, run_with_no_barrier=run_with_no_barrier or None)
    flags = _given(
        master_addr=master_addr,
        master_port=master_port,
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        node_rank=node_rank,
        world_size=world_size,
        init_method=init_method,
    )
    default_ranks = max(1, perform.DEFAULT_RANKS // max(1, virtual_hosts or 1))

    def settings_for(experiment: Experiment) -> LabSettings:
        return LabSettings(
            default_ranks if ranks is None else ranks,
            experiment.trials if trials is None else trials,
            backend,
            virtual_hosts,
            {"largest": _LARGEST_IN_ALL} if name == "all" and experiment.takes("largest") else options,
            json,
            not no_picture,
        )

    if virtual_hosts is not None and virtual_hosts < 1:
        raise UsageError(f"--virtual-hosts {virtual_hosts} is not possible: use 1 or more")
    if name == "all":
        if flags or case or options:
            raise UsageError(f"rollcall lab all takes {_OF_ALL}: leave the other options out")
        worlds.start_server()
        raise typer.Exit(perform.all_of_them(settings_for, json))
    check_name(name)
    assigned = environment.find_assignment(os.environ)
    if assigned.launcher != "alone":
        refused = [*flags, *_given(virtual_hosts=virtual_hosts, n=None if ranks == assigned.world_size else ranks)]
        _refuse(refused, f"the ranks are already started ({assigned.launcher})")
        experiment = load(name)
        settings = replace(settings_for(experiment), ranks=assigned.world_size)
        raise typer.Exit(existing_ranks.run(experiment, settings, assigned.rank, case, results))
    if not virtual_hosts:
        worlds.start_server([name])  # its import of torch overlaps with ours
    experiment = load(name)
    if flags or run_with_no_barrier:
        from rollcall.lab.runner import by_hand  # here, since other commands start faster without it
        from rollcall.lab.runner.node import Node

        flag = next(iter(flags), "run_with_no_barrier")
        refused = list(_given(virtual_hosts=virtual_hosts, json=json or None))
        _refuse(refused, f"with --{flag} the experiment runs once and only logs")
        raise typer.Exit(by_hand.run(experiment, Node.of(flags, ranks, backend), case, options))
    if case is not None:
        raise UsageError(
            f"--case needs ranks that are already started: rollcall run -n 2 -m rollcall lab {name} --case '{case}'"
        )
    raise typer.Exit(perform.one(experiment, settings_for(experiment)))


def _refuse(options: list[str], reason: str) -> None:
    if options:
        option = "-n" if options[0] == "n" else f"--{options[0].replace('virtual_hosts', 'virtual-hosts')}"
        raise UsageError(f"{reason}: leave {option} out")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
