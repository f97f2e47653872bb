"""The command line of `rollcall run`: torchrun's names, dashes or underscores, and ours; out comes a Plan."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from rollcall.cli import host_options, submit
from rollcall.cli.submit import Wishes
from rollcall.coordinator.early_agent import run as run_plan
from rollcall.errors import UsageError, say
from rollcall.protocol.exit_codes import ranks_of
from rollcall.protocol.plan import DEFAULT_PORT, Plan, Program, Show, check, describe

_BACKENDS = ("static", "c10d", "rollcall")
_TORCHRUN = "torchrun's options"
_HOSTS = "Several hosts"
_BY_HAND = "Several hosts, started by hand"
_SCHEDULERS = "Submit to a scheduler"
_LOGS = "Output"


def _option(help_text: str, *names: str, panel: str = _TORCHRUN, hidden: bool = False) -> Any:
    """An option under its dashed and its underscored name, and torchrun's PET_ variable."""
    long = names[0]
    spellings = [*names, *([long.replace("-", "_").replace("__", "--", 1)] if "-" in long[2:] else [])]
    pet = "PET_" + long[2:].replace("-", "_").upper()
    return typer.Option(*spellings, help=help_text, rich_help_panel=panel, envvar=pet, show_envvar=False, hidden=hidden)


def _ours(help_text: str, metavar: str | None = None, panel: str = _HOSTS) -> Any:
    """An option that torchrun does not have, named after its parameter."""
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=panel, show_default=False)


def _wish(help_text: str, metavar: str | None = None) -> Any:
    return _ours(help_text, metavar, _SCHEDULERS)


def run(
    script: Annotated[str, typer.Argument(help="The script; with -m a module; with --no-python a command.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.", show_default=False)] = None,
    nproc_per_node: Annotated[
        str, _option("Ranks per host: a number, auto, gpu or cpu. Also -n. Default: 1.", "--nproc-per-node", "-n")
    ] = "",
    start: Annotated[
        str, typer.Option(help="warm: fork ranks from a server that has torch loaded; fresh: new interpreters.")
    ] = "warm",
    preload: Annotated[
        list[str] | None, typer.Option(help="Import this module once, in the server, for all ranks.", metavar="MODULE")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="End the run after so many seconds, with exit code 124.")
    ] = None,
    grace: Annotated[
        float, _option("Seconds that ranks get to end when asked to.", "--shutdown-timeout", "--grace")
    ] = 10.0,
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Do not record what the ranks say to each other.")
    ] = False,
    hang_after: Annotated[float, typer.Option(help="Explain when nothing has moved for so many seconds.")] = 60.0,
    on_hang: Annotated[str, typer.Option(help="Then: report goes on, stop ends the run with 124.")] = "report",
    report: Annotated[bool, typer.Option("--report", help="Write a page about the run when it is over.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and the commands it replaces.")] = False,
    show: Annotated[
        str, typer.Option(help="Ranks to show: 0, or 0,2-3, or all.", rich_help_panel=_LOGS, metavar="RANKS")
    ] = "all",
    log_dir: Annotated[str | None, _option("Write logs here, in torchrun's layout.", "--log-dir", panel=_LOGS)] = None,
    redirects: Annotated[
        str,
        _option(
            "Keep a stream out of the console: 1 stdout, 2 stderr, 3 both; 0:1,1:3 by local rank.",
            "--redirects",
            "-r",
            panel=_LOGS,
        ),
    ] = "0",
    tee: Annotated[str, _option("Show a stream in spite of --redirects.", "--tee", "-t", panel=_LOGS)] = "0",
    local_ranks_filter: Annotated[str, _option("Local ranks to show: 0,1.", "--local-ranks-filter", panel=_LOGS)] = "",
    max_restarts: Annotated[int, _option("Start again so many times when a rank fails.", "--max-restarts")] = 0,
    module: Annotated[bool, _option("SCRIPT is a module, as in python -m.", "--module", "-m")] = False,
    no_python: Annotated[bool, _option("SCRIPT is a command: run it without Python.", "--no-python")] = False,
    role: Annotated[str, _option("A name for the ranks, seen as ROLE_NAME.", "--role")] = "default",
    standalone: Annotated[bool, _option("This host alone, on a free port. The default.", "--standalone")] = False,
    hosts: Annotated[
        str, _ours("Hosts with their slots, reached by ssh; ranks follow this order.", "a:3,user@b:3,node[01-04]")
    ] = "",
    hostfile: Annotated[Path | None, _ours("The same from a file, one a line: `a slots=3`, or `a:3`.", "FILE")] = None,
    virtual_hosts: Annotated[
        int | None, _ours("So many hosts on this machine, each with a network of its own.", "N")
    ] = None,
    link: Annotated[str | None, _ours("Speed of the virtual hosts' network.", "1gbit")] = None,
    delay: Annotated[str | None, _ours("Delay of the virtual hosts' network, one way.", "2ms")] = None,
    min_hosts: Annotated[int, _ours("Go on with so many when others are lost or do not come.", "N")] = 0,
    python: Annotated[str, _ours("The Python on the hosts. Default: the path of this one.", "PATH")] = "",
    env: Annotated[
        list[str] | None, _ours("Pass a variable on to the hosts; NAME=VALUE sets it.", "NAME|'NCCL_*'")
    ] = None,
    sync: Annotated[bool, _ours("Copy this folder to the hosts first (rsync; .gitignore counts).")] = False,
    interface: Annotated[
        str | None, _ours("The network interface for gloo and NCCL. Default: that of the route to the master.", "NAME")
    ] = None,
    allow_mixed: Annotated[bool, _ours("Versions of Python, torch and rollcall may differ.")] = False,
    slurm: Annotated[bool, _wish("Submit the run to SLURM, and follow it.")] = False,
    kubernetes: Annotated[bool, _wish("Run as a Job on the cluster that kubectl knows.")] = False,
    nodes: Annotated[int | None, _wish("How many nodes, or pods.", "N")] = None,
    name: Annotated[str, _wish("Name of the job. Default: that of the script.", "NAME")] = "",
    sbatch_arg: Annotated[list[str] | None, _wish("An option for sbatch, as it is.", "--partition=gpu")] = None,
    image: Annotated[str, _wish("The container image: rollcall and your program are in it.", "IMG")] = "",
    gpus: Annotated[int, _wish("GPUs of each pod. Default: none.", "N")] = 0,
    cpu: Annotated[str | None, _wish("CPUs that each pod asks for.", "8")] = None,
    memory: Annotated[str | None, _wish("Memory of each pod, asked for and at most.", "64Gi")] = None,
    namespace: Annotated[str | None, _wish("Default: that of kubectl's context.", "NS")] = None,
    workdir: Annotated[str | None, _wish("The folder in the image to run in.", "DIR")] = None,
    nnodes: Annotated[
        str, _option("How many hosts; 2:4 goes on with 2 of 4 named by --hosts.", "--nnodes", panel=_BY_HAND)
    ] = "1",
    node_rank: Annotated[int | None, _option("This host's number, from 0.", "--node-rank", panel=_BY_HAND)] = None,
    master_addr: Annotated[str | None, _option("The address of host 0.", "--master-addr", panel=_BY_HAND)] = None,
    master_port: Annotated[
        int | None, _option("Its port. Default: a free one; 29500 with several hosts.", "--master-port", panel=_BY_HAND)
    ] = None,
    rdzv_endpoint: Annotated[
        str, _option("HOST:PORT, in place of --master-addr and --master-port.", "--rdzv-endpoint", panel=_BY_HAND)
    ] = "",
    rdzv_backend: Annotated[
        str, _option("static, c10d or rollcall: all mean rollcall's own.", "--rdzv-backend", panel=_BY_HAND)
    ] = "static",
    rdzv_id: Annotated[str, _option("The name of the run.", "--rdzv-id", panel=_BY_HAND)] = "",
    rdzv_conf: Annotated[
        str, _option("timeout=600: seconds to wait for all hosts.", "--rdzv-conf", panel=_BY_HAND)
    ] = "",
    local_addr: Annotated[str | None, _option("", "--local-addr", hidden=True)] = None,
    monitor_interval: Annotated[float, _option("", "--monitor-interval", hidden=True)] = 0.1,
    start_method: Annotated[str, _option("", "--start-method", hidden=True)] = "spawn",
    run_path: Annotated[bool, _option("", "--run-path", hidden=True)] = False,
    virtual_local_rank: Annotated[
        bool, _option("Every rank sees LOCAL_RANK 0 and its own GPU only.", "--virtual-local-rank")
    ] = False,
) -> None:
    """Start SCRIPT on several ranks, as torchrun does, only faster.

    [bold]Examples[/]

      rollcall run -n 4 train.py --epochs 3

      rollcall run -n 4 --show 0 --max-restarts 2 -m my.trainer

      rollcall run --hosts alpha:3,beta:3 train.py

      rollcall run --virtual-hosts 2 -n 2 --link 1gbit train.py

      rollcall run --slurm --nodes 2 -n 4 --sbatch-arg=--partition=gpu train.py

      rollcall run --kubernetes --image my/image --nodes 2 -n 4 --gpus 4 train.py

      rollcall run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 -n 4 train.py   (and --node-rank 1 on the other)

      rollcall run -n 4 --report train.py

      rollcall run -n 2 --dry-run train.py
    """
    if module and no_python:
        raise UsageError("-m and --no-python exclude each other: a module is run by Python")
    if on_hang not in ("report", "stop"):
        raise UsageError(f"--on-hang {on_hang} is not known: use report or stop")
    if hang_after <= 0:
        raise UsageError(f"--hang-after {hang_after:g} is not a time to wait: use seconds, such as 60")
    if start not in ("warm", "fresh"):
        raise UsageError(f"--start {start} is not known: use warm or fresh")
    if rdzv_backend not in _BACKENDS:
        raise UsageError(
            f"--rdzv-backend {rdzv_backend} is not needed here: use {', '.join(_BACKENDS)}, or leave it out"
        )
    program = Program("module" if module else "command" if no_python else "script", script, tuple(args or ()))
    wishes = Wishes(nodes, name, tuple(sbatch_arg or ()), image, gpus, cpu, memory, namespace, workdir)
    submit.check_one_way(slurm=slurm, kubernetes=kubernetes, hosts=hosts or hostfile or virtual_hosts)
    typed = submit.options_of(sys.argv, program)
    if slurm:
        raise typer.Exit(submit.submit_to_slurm(wishes, program, nproc_per_node, python, typed, dry_run))
    if kubernetes:
        code = submit.submit_to_kubernetes(
            wishes,
            program,
            nproc_per_node,
            env or [],
            typed,
            dry_run,
            max_restarts=max_restarts,
            grace_s=grace,
            port=master_port or DEFAULT_PORT,
        )
        raise typer.Exit(code)
    wishes.check_unused()
    started_by_hand = standalone or nnodes != "1" or bool(rdzv_endpoint) or master_addr is not None
    if not started_by_hand and (step := host_options.find_step(os.environ)) is not None:
        nnodes, node_rank, master_addr, master_port = step
        started_by_hand = True
    place = host_options.find(hosts, hostfile, virtual_hosts, nproc_per_node, started_by_hand, os.environ)
    named, slots = place.hosts, place.slots
    least, by_hand = host_options.count(nnodes, min_hosts, named)
    conf = _conf(rdzv_conf)
    addr, port = _endpoint(rdzv_endpoint, master_addr, master_port)
    by_arrival = bool(rdzv_endpoint) and "rank" not in conf
    plan = Plan(
        program=program,
        slots=slots,
        hosts=named,
        reach=host_options.reach(
            place.way,
            ranks=nproc_per_node,
            python=python,
            env=env or [],
            min_hosts=least,
            allow_mixed=allow_mixed,
            sync=sync,
            link=link,
            delay=delay,
        ),
        interface=interface,
        nnodes=by_hand,
        node_rank=node_rank if node_rank is not None else None if by_arrival else int(conf.get("rank", 0)),
        master_addr=None if standalone or (by_hand == 1 and not rdzv_endpoint and not named) else addr,
        master_port=0 if standalone else port if port is not None else DEFAULT_PORT if by_hand > 1 else 0,
        max_restarts=max_restarts,
        # One rank gains nothing from a server: its own import of torch is the only one there is.
        start=cast('Literal["warm", "fresh"]', "fresh" if no_python or (slots == 1 and not named) else start),
        preload=tuple(preload or ()),
        role=role,
        run_id=rdzv_id or os.urandom(6).hex(),
        join_timeout_s=float(conf.get("join_timeout", conf.get("timeout", 600))),
        timeout_s=timeout,
        grace_s=grace,
        log_dir=log_dir,
        virtual_local_rank=virtual_local_rank,
        record=not no_record,
        hang_after_s=hang_after,
        on_hang=cast('Literal["report", "stop"]', on_hang),
        show=Show(
            _ranks("--show", show),
            _ranks("--local-ranks-filter", local_ranks_filter or "all"),
            _streams("--redirects", redirects),
            _streams("--tee", tee),
        ),
        cwd=os.getcwd(),
    )
    check(plan)
    if dry_run:
        print(describe(plan))
        return
    code = run_plan(plan)
    if report:
        _report(plan.run_id)
    if code == 0 and plan.record and sys.stderr.isatty():
        _suggest_native()
    raise typer.Exit(code)


def _report(run_id: str) -> None:
    from rollcall.coordinator.run_folder import folder_of
    from rollcall.report.write import write

    try:
        say(f"the report is {os.path.relpath(write(folder_of(run_id)))}")
    except UsageError as error:  # nothing was recorded: the run's own outcome counts
        say(f"no report: {error}")


def _suggest_native() -> None:
    from rollcall import native  # here: nothing else of a run needs it

    if sentence := native.suggestion():
        say(sentence)


def _conf(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError(f"--rdzv-conf {text} is not of the form name=value,name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _endpoint(endpoint: str, addr: str | None, port: int | None) -> tuple[str | None, int | None]:
    if not endpoint:
        return addr, port
    host, colon, number = endpoint.rpartition(":")
    if colon and not number.isdigit():
        raise UsageError(f"--rdzv-endpoint {endpoint} is not of the form HOST:PORT")
    return (host, int(number)) if colon else (number, port)


def _ranks(option: str, text: str) -> tuple[int, ...] | None:
    try:
        return ranks_of(text)
    except ValueError:
        raise UsageError(f"{option} {text} does not name ranks: use 0, or 0,2-3, or all") from None


def _streams(option: str, text: str) -> tuple[tuple[int, int], ...]:
    """torchrun's way to name streams: `3`, or `0:1,1:3` by local rank."""
    pairs = []
    for part in text.split(","):
        local, colon, streams = part.rpartition(":")
        if streams not in ("0", "1", "2", "3") or (colon and not local.isdigit()):
            raise UsageError(f"{option} {text} does not name streams: use 0 to 3, or 0:1,1:3 by local rank")
        pairs += [(int(local) if colon else -1, s) for s in (1, 2) if int(streams) & s]
    return tuple(pairs)
