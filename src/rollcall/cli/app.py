"""The commands of rollcall, one short function each. A function reads its options, and calls the module that does the
work."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rollcall.cli import attach as attach_command
from rollcall.cli import bench as bench_options
from rollcall.cli import doctor
from rollcall.cli import lab as lab_options
from rollcall.cli import profile as profile_command
from rollcall.cli import record as record_command
from rollcall.cli import rehearse as rehearse_options
from rollcall.cli import shell as shell_command
from rollcall.cli import stacks as stacks_command
from rollcall.cli import train as train_options
from rollcall.cli import warm as warm_command
from rollcall.cli.run.command import run as run_ranks
from rollcall.cli.run.options import as_command
from rollcall.cli.shared_options import AsJson, AttemptNumber, RunName
from rollcall.errors import RollcallError, UsageError, say, say_if_possible
from rollcall.linux import standard_streams

app = typer.Typer(
    name="rollcall",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Start PyTorch ranks with one command, and find the rank that the others wait for.",
)
app.command(context_settings={"allow_interspersed_args": False})(as_command(run_ranks))
app.command(context_settings={"allow_interspersed_args": False})(record_command.record)
app.command(context_settings={"allow_interspersed_args": False})(rehearse_options.rehearse)
app.command()(doctor.doctor)
app.command()(bench_options.bench)
app.command()(lab_options.lab)
app.command()(train_options.train)


@app.command()
def explain(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The run: its name or folder; or a folder of Flight Recorder dumps. Default: the newest.",
            metavar="RUN",
        ),
    ] = None,
    attempt: AttemptNumber = None,
    json: AsJson = False,
) -> None:
    """Say why a run failed, hung or was slow: the rank, the call, the line, and which ranks waited for which.

    [bold]Examples[/]

      rollcall explain

      rollcall explain 2026-11-15T10-02-11-train --json

      rollcall explain /tmp/nccl-dumps
    """
    from rollcall.agent.monitoring import stack_requests
    from rollcall.explain.terminal import show
    from rollcall.runs import find_recording

    folder = find_recording(run)
    stack_requests.ask_all(folder)
    show(folder, attempt, json)


@app.command()
def export(
    perfetto: Annotated[
        Path, typer.Option(help="Write a trace for Perfetto and chrome://tracing here.", metavar="FILE")
    ],
    run: RunName = None,
    attempt: AttemptNumber = None,
) -> None:
    """Write a run as a trace for Perfetto: one track per rank, with ops, waits and phases.

    [bold]Examples[/]

      rollcall export --perfetto trace.json

      rollcall export 2026-11-15T10-02-11-train --perfetto trace.json.gz
    """
    from rollcall.report.perfetto import export
    from rollcall.runs import find_recording

    ops = export(find_recording(run), attempt, perfetto)
    print(f"{ops:,} ops are in {perfetto}: open it at https://ui.perfetto.dev or in chrome://tracing")


@app.command()
def report(
    run: RunName = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write it. Default: report.html in the run's folder.")
    ] = None,
) -> None:
    """Write one page about a run that opens in any browser: verdict, timeline, waits, communication, logs.

    [bold]Examples[/]

      rollcall report

      rollcall report 2026-11-15T10-02-11-train --out train.html
    """
    from rollcall.report.write import write
    from rollcall.runs import find_recording

    print(os.path.relpath(write(find_recording(run), out)))


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="A run: its name or folder.", metavar="RUN")],
    second: Annotated[str, typer.Argument(help="The run to compare it with.", metavar="RUN")],
    report: Annotated[
        Path | None, typer.Option(help="Write a page that opens in any browser here.", metavar="FILE")
    ] = None,
    json: AsJson = False,
) -> None:
    """Say what changed between two runs: the first call that differs, and where the time went.

    [bold]Examples[/]

      rollcall compare 2026-11-14T09-30-02-train 2026-11-15T10-02-11-train

      rollcall compare old/ new/ --report changes.html
    """
    from rollcall.explain.compare.terminal import show
    from rollcall.runs import find_recording

    found = show(find_recording(first), find_recording(second), json)
    if report is not None:
        from rollcall.report.compare import write

        write(found, report)
        print(os.path.relpath(report), file=sys.stderr if json else sys.stdout)


@app.command()
def watch(
    run: RunName = None,
    web: Annotated[bool, typer.Option("--web", help="Show the timeline live in a browser.")] = False,
    port: Annotated[int, typer.Option(help="With --web: the port on this machine. Default: a free one.")] = 0,
    every: Annotated[float, typer.Option(help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the state once, and exit.")] = False,
) -> None:
    """Watch a running job: what each rank does, for how long, and which rank the others wait for.

    [bold]Examples[/]

      rollcall watch

      rollcall watch --web
    """
    from rollcall.runs import find_run

    if not 0.1 <= every <= 3600:
        raise UsageError(f"--every {every:g} is not a time between updates: use seconds from 0.1 on")
    folder = find_run(run)
    if web:
        from rollcall.live.server import serve

        serve(folder, port)
    else:
        from rollcall.live.terminal import watch as show

        show(folder, every, once)


app.command()(shell_command.shell)
app.command()(stacks_command.stacks)
app.command()(attach_command.attach)
app.command()(profile_command.profile)
app.command()(warm_command.warm)


@app.command()
def runs() -> None:
    """List the runs of this folder: when, command, ranks, how long, outcome.

    [bold]Example[/]

      rollcall runs
    """
    from rollcall.cli.tables import print_runs
    from rollcall.runs import all_runs

    print_runs(list(all_runs()))


@app.command()
def demo() -> None:
    """Show the main features on ranks of this machine: a roll call, a barrier, a training, deadlocks, two hosts.

    It takes about half a minute, and prints the command of each step, so that you can repeat it.

    [bold]Example[/]

      rollcall demo
    """
    from rollcall.demo import show

    raise typer.Exit(show())


@app.command()
def version() -> None:
    """Print the versions of rollcall, torch and Python.

    [bold]Example[/]

      rollcall version
    """
    from rollcall.cli.tables import print_versions

    print_versions()


# click's, or typer's own copy of it: that depends on the version of typer.
_BadCommandLine: type[Exception] = typer.BadParameter.__bases__[0]


def command() -> None:
    """Run the command line. An error becomes one sentence and an exit code."""
    try:
        _check_folder()
        sys.exit(app(standalone_mode=False))
    except RollcallError as error:
        say(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if not standard_streams.is_lost_output(error):
            raise
        standard_streams.discard(sys.stdout)
        if isinstance(error, BrokenPipeError):  # the exit code of a process that SIGPIPE has ended
            sys.exit(128 + signal.SIGPIPE)
        say_if_possible(f"the output cannot be written: {error.strerror}")
        sys.exit(1)
    except _BadCommandLine as error:
        if text := _sentence(error):  # it is empty if the help was printed
            say(text)
        sys.exit(UsageError.exit_code)


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder has been removed: change to another one, and try again") from None


def _sentence(error: Any) -> str:
    text = error.format_message().rstrip(".")
    command = " ".join(["rollcall", *sys.argv[1:2]]) if error.ctx is None or error.ctx.parent else "rollcall"
    return text and f"{text[0].lower()}{text[1:]}; `{command} --help` lists what there is"
