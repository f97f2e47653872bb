"""The commands of rollcall, one short function each. No logic: each hands over to its module."""

import sys
from typing import Annotated

import typer

from rollcall.errors import RollcallError, say
from rollcall.launch import doctor_options, options
from rollcall.train import options as train_options

app = typer.Typer(
    name="rollcall",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Starts PyTorch ranks with one command, and tells who keeps everyone waiting.",
)
app.command(context_settings={"allow_interspersed_args": False})(options.run)


app.command()(doctor_options.doctor)
app.command()(train_options.train)


@app.command()
def explain(
    run: Annotated[str | None, typer.Argument(help="The run: its name or folder. Default: the newest.")] = None,
    attempt: Annotated[int | None, typer.Option(help="Which attempt. Default: the last.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what happened in a run: which rank, which call, which line, and why; and who waited for whom.

    [bold]Examples[/]

      rollcall explain

      rollcall explain 2026-11-15T10-02-11-train --json
    """
    from rollcall.explain.show import find_run, show
    from rollcall.launch.runs import home

    show(find_run(run, home()), attempt, json)


@app.command()
def runs() -> None:
    """List the runs of this folder: when, command, ranks, how long, outcome."""
    from rollcall.launch.runs import all_runs
    from rollcall.tables import print_runs

    print_runs(list(all_runs()))


@app.command()
def demo() -> None:
    """Show the main job on this machine alone: a roll call, a barrier, a small training."""
    from rollcall.demo import show

    raise typer.Exit(show())


@app.command()
def version() -> None:
    """Print the versions of rollcall, torch and Python."""
    from rollcall.tables import print_versions

    print_versions()


def command() -> None:
    """Do what the command line says; what goes wrong is one sentence."""
    try:
        app()
    except RollcallError as error:
        say(error)
        sys.exit(error.exit_code)
