"""The command line of the lab: `rollcall lab NAME`, and `python -m rollcall.lab.NAME` with the same options."""

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rollcall.errors import RollcallError, UsageError, say
from rollcall.lab.experiment import question_of

_LARGEST_OF_ALL = "64MB"  # of bandwidth, where it is one of sixteen
_BY_HAND = "Run it once, node by node, as the origin's programs were"


def _flag(help_text: str, name: str) -> Any:
    """One of the origin's flags, under its own name and with dashes."""
    names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
    return typer.Option(*names, help=help_text, rich_help_panel=_BY_HAND, show_default=False)


def lab(
    name: Annotated[
        str, typer.Argument(help="Which experiment; all for the whole lab. Default: list them.", show_default=False)
    ] = "",
    ranks: Annotated[
        int | None, typer.Option("-n", help="Ranks, on each host. Default: 4 in all.", show_default=False)
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="How often it is repeated. Default: its own.", show_default=False)
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="gloo or nccl. Default: nccl where each rank has a GPU.", show_default=False)
    ] = None,
    virtual_hosts: Annotated[
        int | None, typer.Option(help="So many hosts on this machine, each with a network of its own.", metavar="N")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything that was measured as JSON.")] = False,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Do not draw.")] = False,
    arm: Annotated[
        str | None, typer.Option(help="In a world of torchrun or rollcall run: this arm alone.", show_default=False)
    ] = None,
    largest: Annotated[
        str | None, typer.Option(help="bandwidth: the largest size, such as 64MB.", show_default=False)
    ] = None,
    results: Annotated[Path | None, typer.Option(hidden=True)] = None,
    recorded: Annotated[bool, typer.Option("--recorded", hidden=True)] = False,
    master_addr: Annotated[str | None, _flag("The address of node 0.", "master_addr")] = None,
    master_port: Annotated[int | None, _flag("Its port; if busy, the next free one.", "master_port")] = None,
    nnodes: Annotated[int | None, _flag("How many nodes.", "nnodes")] = None,
    nproc_per_node: Annotated[int | None, _flag("Ranks on each.", "nproc_per_node")] = None,
    node_rank: Annotated[int | None, _flag("Which node this is, from 0.", "node_rank")] = None,
    world_size: Annotated[int | None, _flag("All ranks of all nodes.", "world_size")] = None,
    init_method: Annotated[str | None, _flag("env://, tcp://host:port or file:///path.", "init_method")] = None,
    run_with_no_barrier: Annotated[bool, _flag("barrier: run it without the barrier.", "run_with_no_barrier")] = False,
) -> None:
    """Experiments on real ranks, each with a question, a measured verdict and a picture.

    [bold]Examples[/]

      rollcall lab

      rollcall lab barrier

      rollcall lab ring -n 3 --trials 20 --json

      rollcall lab bandwidth --virtual-hosts 2 -n 2

      rollcall lab all

      rollcall lab barrier --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 --nproc_per_node=2   (and 1 on the other)
    """
    from rollcall.initialization import environment
    from rollcall.lab.experiment import Settings, check_name, load
    from rollcall.lab.runner import in_world, perform, terminal, worlds

    if not name:
        terminal.list_experiments(json)
        return
    extras = {"largest": largest, "run_with_no_barrier": run_with_no_barrier or None}
    extras = {key: value for key, value in extras.items() if value is not None}
    flags = {
        "master_addr": master_addr,
        "master_port": master_port,
        "nnodes": nnodes,
        "nproc_per_node": nproc_per_node,
        "node_rank": node_rank,
        "world_size": world_size,
        "init_method": init_method,
    }
    given = [flag for flag, value in flags.items() if value is not None]

    def settings_for(experiment: Any) -> Settings:
        hosts = virtual_hosts or 1
        chosen = ranks if ranks is not None else max(1, perform.DEFAULT_RANKS // hosts)
        own = {**({"largest": _LARGEST_OF_ALL} if name == "all" and experiment.takes("largest") else {}), **extras}
        return Settings(chosen, trials if trials is not None else experiment.trials, backend, virtual_hosts, own)

    if virtual_hosts is not None and virtual_hosts < 1:
        raise UsageError(f"--virtual-hosts {virtual_hosts} is not possible: use 1 or more")
    if name == "all":
        if given or arm or extras:
            raise UsageError(
                "the whole lab takes -n, --trials, --backend, --virtual-hosts and --json: leave others out"
            )
        worlds.warm_up()
        raise typer.Exit(perform.all_of_them(settings_for, json, not no_picture))
    check_name(name)
    place = environment.find_assignment(os.environ)
    if place.launcher == "alone" and not virtual_hosts:
        worlds.warm_up([name])  # its import of torch and ours share the cores
    experiment = load(name)
    settings = settings_for(experiment)
    if place.launcher != "alone":
        if given or virtual_hosts is not None or (ranks is not None and ranks != place.world_size):
            what = f"--{given[0]}" if given else "--virtual-hosts" if virtual_hosts is not None else "-n"
            raise UsageError(f"{place.launcher} has started this rank already, and knows better: leave {what} out")
        raise typer.Exit(in_world.run(experiment, settings, place, arm, results, recorded, json, not no_picture))
    if given or run_with_no_barrier:
        from rollcall.lab.runner import by_hand
        from rollcall.lab.runner.node import Node

        if virtual_hosts is not None or json:
            what = "--json" if json else "--virtual-hosts"
            raise UsageError(f"with --{(given or ['run_with_no_barrier'])[0]} it runs once, as a log: leave {what} out")
        node = Node.of(flags, ranks, backend)
        raise typer.Exit(by_hand.run(experiment, node, arm, extras))
    if arm is not None:
        raise UsageError(
            f"--arm {arm} is for a world that is there: rollcall run -n 2 -m rollcall.lab.{name} --arm '{arm}'"
        )
    raise typer.Exit(perform.one(experiment, settings, json, not no_picture))


def _with_name(name: str) -> Callable[..., None]:
    """The command without its argument."""

    @functools.wraps(lab)
    def one(**options: Any) -> None:
        lab(name, **options)

    one.__doc__ = f"{question_of(name)}\n\nThe same as `rollcall lab {name}`."
    signature = inspect.signature(lab)
    one.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[parameter for parameter in signature.parameters.values() if parameter.name != "name"]
    )
    return one


def main(file: str) -> None:
    """`python -m rollcall.lab.NAME`: the same options, with the name known."""
    name = Path(file).stem
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(_with_name(name))
    try:
        app(prog_name=f"python -m rollcall.lab.{name}")
    except RollcallError as error:
        say(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
