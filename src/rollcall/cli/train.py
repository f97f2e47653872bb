"""The command line of `rollcall train`: how to start the ranks as with `rollcall run`, and a recipe for them."""

import os
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from rollcall.cli import run
from rollcall.cli.run_options import RunOptions
from rollcall.errors import UsageError
from rollcall.train.config import Recipe, help_of

_RANKS = "Ranks"
_DEFAULT = Recipe()


def _of(name: str) -> Any:
    """An option of the recipe."""
    return typer.Option(help=help_of(name), show_default=name != "clip_norm")


def _ranks(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=_RANKS, show_default=False)


def train(
    model: Annotated[str, _of("model")] = _DEFAULT.model,
    epochs: Annotated[int, _of("epochs")] = _DEFAULT.epochs,
    batch_size: Annotated[int, _of("batch_size")] = _DEFAULT.batch_size,
    lr: Annotated[float, _of("lr")] = _DEFAULT.lr,
    seed: Annotated[int, _of("seed")] = _DEFAULT.seed,
    strategy: Annotated[str, _of("strategy")] = _DEFAULT.strategy,
    accumulate: Annotated[int, _of("accumulate")] = _DEFAULT.accumulate,
    clip_norm: Annotated[float | None, _of("clip_norm")] = None,
    precision: Annotated[str, _of("precision")] = _DEFAULT.precision,
    compile: Annotated[bool, typer.Option("--compile", help=help_of("compile"))] = False,
    cosine: Annotated[bool, typer.Option("--cosine", help=help_of("cosine"))] = False,
    uneven: Annotated[str, _of("uneven")] = _DEFAULT.uneven,
    patience: Annotated[int, _of("patience")] = _DEFAULT.patience,
    snapshots: Annotated[str, _of("snapshots")] = _DEFAULT.snapshots,
    save_every: Annotated[str, _of("save_every")] = _DEFAULT.save_every,
    keep: Annotated[int, _of("keep")] = _DEFAULT.keep,
    nproc_per_node: Annotated[str, _ranks("Ranks per host, as for run. Default: 1.", "--nproc-per-node", "-n")] = "",
    hosts: Annotated[str, _ranks("Hosts with their slots, reached by ssh.", "--hosts")] = "",
    hostfile: Annotated[Path | None, _ranks("The same from a file.", "--hostfile")] = None,
    virtual_hosts: Annotated[int | None, _ranks("So many hosts on this machine.", "--virtual-hosts")] = None,
    max_restarts: Annotated[int, _ranks("Go on from the newest snapshot so many times.", "--max-restarts")] = 0,
    grace: Annotated[float, _ranks("Seconds for a last snapshot when told to end. Default: 10.", "--grace")] = 10.0,
    timeout: Annotated[float | None, _ranks("End the run after so many seconds.", "--timeout")] = None,
    dry_run: Annotated[bool, _ranks("Print the plan and the commands it replaces.", "--dry-run")] = False,
) -> None:
    """Train a model on handwritten digits, so that nothing can stop it for long.

    The ranks run `rollcall.Trainer`; `rollcall run … -m rollcall.train` is the same with all of run's options, and
    `torchrun … -m rollcall.train`, or `srun python -m rollcall.train`, the same under another launcher.

    [bold]Examples[/]

      rollcall train -n 2

      rollcall train -n 4 --model cnn --epochs 20 --save-every 50steps --max-restarts 3
    """
    recipe = Recipe(
        model=model,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        strategy=cast(Any, strategy),
        accumulate=accumulate,
        clip_norm=clip_norm,
        precision=cast(Any, precision),
        compile=compile,
        cosine=cosine,
        uneven=cast(Any, uneven),
        patience=patience,
        snapshots=snapshots,
        save_every=save_every,
        keep=keep,
    )
    recipe.check()
    if "RANK" in os.environ:
        raise UsageError("this is a rank of another run already: there, use python -m rollcall.train")
    options = RunOptions(
        script="rollcall.train",
        args=recipe.words(),
        module=True,
        nproc_per_node=nproc_per_node,
        hosts=hosts,
        hostfile=hostfile,
        virtual_hosts=virtual_hosts,
        max_restarts=max_restarts,
        grace=grace,
        timeout=timeout,
        dry_run=dry_run,
        preload=["rollcall.train.program", "sklearn.datasets", "torch._dynamo"],
    )
    run.run(options)
