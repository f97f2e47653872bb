"""`rollcall run`: from its options to a plan, or to a job of a scheduler."""

import os
import signal
import sys
from typing import Literal, NoReturn, cast, get_args

import typer

from rollcall.addresses import interface_of
from rollcall.cli import host_options
from rollcall.cli.run import submit
from rollcall.cli.run.options import RunOptions
from rollcall.cli.warm import IDLE_S
from rollcall.errors import RollcallError, UsageError, say
from rollcall.linux import signals
from rollcall.protocol.plan import DEFAULT_PORT, ByHand, NumaBinding, OnHang, Plan, Program, Show, check, describe
from rollcall.protocol.rank_ranges import read_ranks

_BACKENDS = ("static", "c10d", "rollcall")
_START_METHODS = {"spawn": "fresh", "fork": "warm", "forkserver": "warm"}


def run(options: RunOptions) -> None:
    """Start SCRIPT on several ranks, as torchrun does, and record their torch.distributed calls.

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
    _check(options)
    if options.slurm:
        raise typer.Exit(submit.to_slurm(options, program_of(options)))
    if options.kubernetes:
        raise typer.Exit(submit.to_kubernetes(options, program_of(options)))
    submit.check_unused(options)
    plan = check(plan_of(options))
    handled = _signals(options.signals_to_handle)
    if options.dry_run:
        print(describe(plan))
        return
    signals.note(handled)
    from rollcall.coordinator import launcher  # here: `rollcall --help` and `--dry-run` do not need it

    if options.preflight:
        from rollcall.coordinator import healthy_hosts  # here: most runs check no host

        plan = healthy_hosts.checked(plan, options.exclude_bad, say)
    code = launcher.run(plan)
    _leave_warm_server(plan)
    if options.report:
        _report(plan.run_id)
    if code == 0 and plan.record and sys.stderr.isatty():
        _suggest_native()
    raise typer.Exit(code)


def run_and_exit(options: RunOptions) -> NoReturn:
    """Run the command with options that were read without typer."""
    try:
        run(options)
    except RollcallError as error:
        say(error)
        sys.exit(error.exit_code)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    sys.exit(0)


def _leave_warm_server(plan: Plan) -> None:
    """With ROLLCALL_WARM=1: start a warm server, unless one is ready for the next run like this one."""
    # Imported here: `rollcall --help` does not need them.
    from rollcall.coordinator.early_agent import read_start_options
    from rollcall.linux import warm_servers
    from rollcall.transport import warm

    is_here = plan.transport.kind == "local" and plan.by_hand is None and plan.start == "warm"
    if os.environ.get(warm_servers.SWITCH) != "1" or not is_here:
        return
    start_options = read_start_options(sys.argv, os.environ)
    if start_options is not None and not warm.is_ready(start_options):
        os.close(warm.start(start_options, IDLE_S))


def _check(options: RunOptions) -> None:
    """Refuse a wrong option, or one that is not available, in one sentence."""
    if options.module and options.no_python:
        raise UsageError("-m and --no-python exclude each other: a module is run by Python")
    if options.run_path and (options.module or options.no_python):
        raise UsageError("--run-path runs a script: leave out -m and --no-python")
    _check_on_hang(options)
    if options.hang_after <= 0:
        raise UsageError(f"--hang-after {options.hang_after:g} is not a time to wait: use seconds, such as 60")
    if options.timeout is not None and options.timeout <= 0:
        raise UsageError(f"--timeout {options.timeout:g} is not a time to run: use seconds, or leave it out")
    if options.grace < 0:
        raise UsageError(f"--shutdown-timeout {options.grace:g} is below zero: use seconds, or 0 for none")
    if options.start not in ("warm", "fresh"):
        raise UsageError(f"--start {options.start} is not known: use warm or fresh")
    if options.start_method is not None and options.start_method not in _START_METHODS:
        raise UsageError(f"--start-method {options.start_method} is not known: use {', '.join(_START_METHODS)}")
    if options.monitor_interval <= 0:
        raise UsageError(f"--monitor-interval {options.monitor_interval:g} is not a time: use seconds, such as 0.1")
    if options.rdzv_backend not in _BACKENDS:
        raise UsageError(
            f"--rdzv-backend {options.rdzv_backend} is not needed here: use {', '.join(_BACKENDS)}, or leave it out"
        )
    if options.numa_binding is not None and options.numa_binding not in get_args(NumaBinding):
        raise UsageError(f"--numa-binding {options.numa_binding} is not known: use {', '.join(get_args(NumaBinding))}")
    if options.event_log_handler != "null":
        raise UsageError(
            f"--event-log-handler {options.event_log_handler} is not available here: what happened is in the run's"
            " run.json; leave it out"
        )
    if options.logs_specs is not None:
        raise UsageError("--logs-specs is not available here: use --log-dir, --redirects and --tee")
    if options.duplicate_stdout_filters or options.duplicate_stderr_filters:
        raise UsageError(
            "--duplicate-stdout-filters and --duplicate-stderr-filters are not available here: search the logs of the"
            " run with grep"
        )
    if options.exclude_bad and not options.preflight:
        raise UsageError("--exclude-bad leaves out what --preflight has found: add --preflight")
    if options.preflight and options.nnodes != "1" and not (options.hosts or options.hostfile):
        raise UsageError("--preflight needs a launcher that leads all hosts: name them with --hosts")
    submit.check_one_way(options)


def _check_on_hang(options: RunOptions) -> None:
    if options.on_hang not in get_args(OnHang):
        raise UsageError(f"--on-hang {options.on_hang} is not known: use report, stop or restart")
    if options.on_hang != "restart":
        return
    if options.max_restarts < 1:
        raise UsageError("--on-hang restart has no restart to use: add --max-restarts 3, or use --on-hang stop")
    if options.no_record:
        raise UsageError("--on-hang restart needs the recording to notice a hang: leave out --no-record")
    if options.kubernetes:
        raise UsageError("--on-hang restart needs a launcher that leads all hosts: with --kubernetes, use stop")


def program_of(options: RunOptions) -> Program:
    kind: Literal["script", "module", "command"] = "module" if options.module else "script"
    return Program("command" if options.no_python else kind, options.script, tuple(options.args or ()))


def plan_of(options: RunOptions) -> Plan:
    found = host_options.find(options, os.environ)
    conf = _conf(options.rdzv_conf)
    addr, port = _endpoint(options.rdzv_endpoint, found.master_addr, found.master_port)
    by_arrival = bool(options.rdzv_endpoint) and "rank" not in conf
    node_rank = found.node_rank if found.node_rank is not None else None if by_arrival else int(conf.get("rank", 0))
    by_hand = ByHand(found.nnodes, node_rank) if found.nnodes != 1 else None
    is_here = found.transport.kind == "local"
    return Plan(
        program=program_of(options),
        hosts=found.hosts,
        transport=found.transport,
        by_hand=by_hand,
        interface=options.interface or _interface(options.local_addr),
        master_addr=None if options.standalone or (is_here and by_hand is None) else addr,
        master_port=0 if options.standalone else port if port is not None else DEFAULT_PORT if by_hand else 0,
        max_restarts=options.max_restarts,
        start=_start(options, is_alone=is_here and found.hosts[0].slots == 1),
        preload=tuple(options.preload or ()),
        role=options.role,
        run_id=options.rdzv_id or os.urandom(6).hex(),
        join_timeout_s=float(conf.get("join_timeout", conf.get("timeout", Plan.join_timeout_s))),
        timeout_s=options.timeout,
        grace_s=options.grace,
        monitor_interval_s=options.monitor_interval,
        log_dir=options.log_dir,
        virtual_local_rank=options.virtual_local_rank,
        numa_binding=cast("NumaBinding | None", options.numa_binding),
        record=not options.no_record,
        ring_mb=options.ring_mb,
        hang_after_s=options.hang_after,
        on_hang=cast(OnHang, options.on_hang),
        on_event=options.on_event,
        metrics=options.metrics,
        show=Show(
            read_ranks("--show", options.show),
            read_ranks("--local-ranks-filter", options.local_ranks_filter or "all"),
            _streams("--redirects", options.redirects),
            _streams("--tee", options.tee),
        ),
        prompt=options.prompt,
        cwd=os.getcwd(),
    )


def _start(options: RunOptions, is_alone: bool) -> Literal["warm", "fresh"]:
    # A single rank gains nothing from a fork server: torch is imported once in either case.
    if options.no_python or is_alone:
        return "fresh"
    start = _START_METHODS[options.start_method] if options.start_method else options.start
    return cast('Literal["warm", "fresh"]', start)


def _interface(address: str | None) -> str | None:
    if address is None:
        return None
    found = interface_of(address)
    if found is None:
        raise UsageError(f"--local-addr {address} is not an address of this host: use one that `ip address` shows")
    return found


def _signals(text: str) -> tuple[int, ...]:
    """`SIGTERM,SIGUSR1`, in torchrun's form, as numbers."""
    try:
        return tuple(signal.Signals[name.strip()] for name in text.split(",") if name.strip())
    except KeyError as error:
        raise UsageError(f"--signals-to-handle {text}: there is no signal {error}; use names such as SIGTERM") from None


def _report(run_id: str) -> None:
    from rollcall.report.write import write  # here, and below: only --report needs them
    from rollcall.runs import folder_of

    try:
        say(f"the report is {os.path.relpath(write(folder_of(run_id)))}")
    except UsageError as error:  # nothing was recorded; the exit code stays that of the run
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


def _streams(option: str, text: str) -> tuple[tuple[int, int], ...]:
    """torchrun's way to name streams: `3`, or `0:1,1:3` by local rank."""
    pairs = []
    for part in text.split(","):
        local, colon, streams = part.rpartition(":")
        if streams not in ("0", "1", "2", "3") or (colon and not local.isdigit()):
            raise UsageError(f"{option} {text} does not name streams: use 0 to 3, or 0:1,1:3 by local rank")
        pairs += [(int(local) if colon else -1, s) for s in (1, 2) if int(streams) & s]
    return tuple(pairs)
