"""The command line of `rollcall train`: options of the training, and how to start its ranks."""

import os
from dataclasses import Field, fields
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from rollcall.cli.run import command as run
from rollcall.cli.run.options import RunOptions
from rollcall.cli.shared_options import HostFile, HostNames, VirtualHosts
from rollcall.errors import UsageError
from rollcall.protocol.plan import Plan
from rollcall.train.recipes.config import TrainConfig, flag


def _ranks(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Ranks", show_default=False)


def train(
    *,
    nproc_per_node: Annotated[str, _ranks("Ranks per host, as for run. Default: 1.", "--nproc-per-node", "-n")] = "",
    hosts: HostNames = None,
    hostfile: HostFile = None,
    virtual_hosts: VirtualHosts = None,
    max_restarts: Annotated[int, _ranks("Restart from the newest snapshot up to N times.", "--max-restarts")] = 0,
    grace: Annotated[
        float, _ranks("Seconds to save a last snapshot after SIGTERM. Default: 10.", "--grace")
    ] = Plan.grace_s,
    timeout: Annotated[float | None, _ranks("End the run after N seconds.", "--timeout")] = None,
    dry_run: Annotated[
        bool, _ranks("Print the plan, and the commands that it replaces. Start nothing.", "--dry-run")
    ] = False,
    **options: Any,
) -> None:
    """Train a model; continue from the newest snapshot after any interruption.

    RECIPE is MODULE:FUNCTION or FILE.py:FUNCTION.
    The function gets these options, and returns model, optimizer and data, or a `rollcall.Recipe`.
    Without it, a small model is trained on handwritten digits.

    The ranks run `rollcall.Trainer`.
    Under another launcher: `torchrun … -m rollcall.train`, or `srun python -m rollcall.train`.
    With all options of run: `rollcall run … -m rollcall.train`.

    [bold]Examples[/]

      rollcall train -n 2

      rollcall train my_module:recipe -n 8 --lr 3e-4 --strategy fsdp --precision bf16

      rollcall train -n 4 --model cnn --epochs 20 --save-every 50steps --max-restarts 3
    """
    config = TrainConfig(**options)
    config.check()
    if "RANK" in os.environ:
        raise UsageError("this process is already a rank of another run: use python -m rollcall.train here")
    if not (hosts or hostfile):
        config.check_source()
    digits = [] if config.recipe else ["rollcall.train.digits.recipe"]
    wanted = RunOptions(
        script="rollcall.train",
        args=config.to_args(),
        module=True,
        nproc_per_node=nproc_per_node,
        hosts=hosts,
        hostfile=hostfile,
        virtual_hosts=virtual_hosts,
        max_restarts=max_restarts,
        grace=grace,
        timeout=timeout,
        dry_run=dry_run,
        preload=["rollcall.train.recipes.program", "torch._dynamo", *digits],
    )
    run.run(wanted)


def _parameter(option: "Field[Any]") -> Parameter:
    kind = option.metadata["kind"]
    if option.name == "recipe":
        argument = typer.Argument(help=option.metadata["help"], metavar="RECIPE", show_default=False)
        return Parameter(option.name, Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, argument])
    info = typer.Option(flag(option), help=option.metadata["help"], show_default=option.default is not None)
    kind = kind if option.default is not None else kind | None
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=Annotated[kind, info])


# Typer reads the options from the signature: those of the training take the place of **options.
_of_training = [_parameter(option) for option in fields(TrainConfig)]
_of_ranks = [each for each in signature(train).parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
train.__signature__ = signature(train).replace(parameters=[*_of_training, *_of_ranks])  # type: ignore[attr-defined]
