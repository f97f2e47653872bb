"""The options of `rollcall run`, as one value: those of torchrun, with dashes or underscores, and those of rollcall."""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import typer

from rollcall.cli.shared_options import (
    HangAfter,
    HostFile,
    HostNames,
    HostPython,
    LinkBandwidth,
    LinkDelay,
    Preload,
    RingMb,
    VirtualHosts,
    host_option,
)
from rollcall.protocol.plan import Plan

_TORCHRUN = "torchrun's options"
_BY_HAND = "Several hosts, started by hand"
_SCHEDULERS = "Submit to a scheduler"
_LOGS = "Output"


def _torchrun(help_text: str, *names: str, panel: str = _TORCHRUN, hidden: bool = False) -> Any:
    """An option under its dashed and its underscored name, and torchrun's PET_ variable."""
    long = names[0]
    spellings = [*names, *([long.replace("-", "_").replace("__", "--", 1)] if "-" in long[2:] else [])]
    pet = "PET_" + long[2:].replace("-", "_").upper()
    return typer.Option(*spellings, help=help_text, rich_help_panel=panel, envvar=pet, show_envvar=False, hidden=hidden)


def _ours(name: str, help_text: str, metavar: str | None = None, panel: str | None = None) -> Any:
    """An option that torchrun does not have."""
    return typer.Option(name, help=help_text, metavar=metavar, rich_help_panel=panel, show_default=False)


def _scheduler(name: str, help_text: str, metavar: str | None = None) -> Any:
    return _ours(name, help_text, metavar, _SCHEDULERS)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of one `rollcall run`, as read from the command line."""

    script: Annotated[
        str, typer.Argument(help="The script; with -m a module; with --no-python a command.", metavar="SCRIPT")
    ]
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.", show_default=False, metavar="ARGS")] = None
    nproc_per_node: Annotated[
        str, _torchrun("Ranks per host: a number, auto, gpu or cpu. Default: 1.", "--nproc-per-node", "-n")
    ] = ""
    start: Annotated[
        str,
        typer.Option("--start", help="warm: fork ranks from a process that has imported torch; fresh: start Python."),
    ] = Plan.start
    preload: Preload = None
    timeout: Annotated[float | None, _ours("--timeout", "End the run after N seconds, with exit code 124.")] = None
    grace: Annotated[
        float,
        _torchrun(
            "Seconds that ranks have to end after SIGINT or SIGTERM, before SIGKILL.", "--shutdown-timeout", "--grace"
        ),
    ] = Plan.grace_s
    no_record: Annotated[bool, typer.Option("--no-record", help="Do not record the ops of the ranks.")] = False
    ring_mb: RingMb = None
    hang_after: HangAfter = Plan.hang_after_s
    on_hang: Annotated[
        str,
        typer.Option(
            "--on-hang",
            help="On a hang: 'report' explains it and lets the run continue; 'stop' ends the run with exit code 124;"
            " 'restart' starts the next attempt, one of --max-restarts.",
        ),
    ] = Plan.on_hang
    on_event: Annotated[
        str,
        _ours("--on-event", "Run a command for each event; it gets one JSON object on standard input.", "CMD"),
    ] = ""
    metrics: Annotated[
        str,
        _ours(
            "--metrics", "Serve metrics for Prometheus at this address; a port alone means loopback.", "127.0.0.1:9100"
        ),
    ] = ""
    prompt: Annotated[str, typer.Option("--prompt", help="The socket of `rollcall shell`.", hidden=True)] = ""
    report: Annotated[bool, typer.Option("--report", help="Write a page about the run when it is over.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, and the commands that it replaces. Start nothing.")
    ] = False
    show: Annotated[
        str, typer.Option("--show", help="Ranks to show: 0, or 0,2-3, or all.", rich_help_panel=_LOGS, metavar="RANKS")
    ] = "all"
    log_dir: Annotated[str | None, _torchrun("Write logs here, in torchrun's layout.", "--log-dir", panel=_LOGS)] = None
    redirects: Annotated[
        str,
        _torchrun(
            "Write a stream only to the logs: 1 stdout, 2 stderr, 3 both; 0:1,1:3 by local rank.",
            "--redirects",
            "-r",
            panel=_LOGS,
        ),
    ] = "0"
    tee: Annotated[
        str, _torchrun("Also show a stream that --redirects hides; same values.", "--tee", "-t", panel=_LOGS)
    ] = "0"
    local_ranks_filter: Annotated[str, _torchrun("Local ranks to show: 0,1.", "--local-ranks-filter", panel=_LOGS)] = ""
    max_restarts: Annotated[
        int, _torchrun("If a rank fails, start all ranks again, at most N times.", "--max-restarts")
    ] = 0
    module: Annotated[bool, _torchrun("SCRIPT is a module, as in python -m.", "--module", "-m")] = False
    no_python: Annotated[bool, _torchrun("SCRIPT is a command: run it without Python.", "--no-python")] = False
    run_path: Annotated[
        bool, _torchrun("SCRIPT is run by its path. That is the default here.", "--run-path", hidden=True)
    ] = False
    role: Annotated[str, _torchrun("A name for the ranks; they get it as ROLE_NAME.", "--role")] = Plan.role
    standalone: Annotated[
        bool, _torchrun("Use this host only, and a free port. This is the default.", "--standalone")
    ] = False
    start_method: Annotated[
        str | None, _torchrun("spawn means --start fresh; fork and forkserver mean warm.", "--start-method")
    ] = None
    monitor_interval: Annotated[float, _torchrun("Seconds between two checks of the ranks.", "--monitor-interval")] = (
        Plan.monitor_interval_s
    )
    signals_to_handle: Annotated[
        str, _torchrun("Signals that end the run: SIGTERM,SIGUSR1,…", "--signals-to-handle")
    ] = ""
    virtual_local_rank: Annotated[
        bool, _torchrun("Every rank sees LOCAL_RANK 0, and only its own GPU.", "--virtual-local-rank")
    ] = False
    numa_binding: Annotated[
        str | None, _torchrun("Bind ranks near their GPUs: node, socket, exclusive or core-complex.", "--numa-binding")
    ] = None
    event_log_handler: Annotated[str, _torchrun("Only null.", "--event-log-handler", hidden=True)] = "null"
    logs_specs: Annotated[str | None, _torchrun("Not available.", "--logs-specs", hidden=True)] = None
    duplicate_stdout_filters: Annotated[str, _torchrun("Not available.", "--duplicate-stdout-filters", hidden=True)] = (
        ""
    )
    duplicate_stderr_filters: Annotated[str, _torchrun("Not available.", "--duplicate-stderr-filters", hidden=True)] = (
        ""
    )
    hosts: HostNames = None
    hostfile: HostFile = None
    virtual_hosts: VirtualHosts = None
    link: LinkBandwidth = None
    delay: LinkDelay = None
    min_hosts: Annotated[int, host_option("--min-hosts", "Continue while at least N hosts are available.", "N")] = 0
    spares: Annotated[
        int, host_option("--spares", "Keep the last N hosts without ranks: one of them replaces a lost host.", "N")
    ] = 0
    preflight: Annotated[
        bool, host_option("--preflight", "Check all hosts first, as `rollcall doctor --deep` does.")
    ] = False
    exclude_bad: Annotated[
        bool,
        host_option("--exclude-bad", "With --preflight: continue without bad hosts, if --spares or --min-hosts allow."),
    ] = False
    python: HostPython = ""
    env: Annotated[
        list[str] | None,
        host_option("--env", "Pass this environment variable to the hosts; NAME=VALUE sets it.", "NAME|'NCCL_*'"),
    ] = None
    sync: Annotated[
        bool, host_option("--sync", "Copy this folder to the hosts first (rsync; respects .gitignore).")
    ] = False
    interface: Annotated[
        str | None,
        host_option(
            "--interface", "Network interface for gloo and NCCL. Default: that of the route to the master.", "NAME"
        ),
    ] = None
    allow_mixed: Annotated[
        bool, host_option("--allow-mixed", "Allow different versions of Python, torch and rollcall.")
    ] = False
    slurm: Annotated[bool, _scheduler("--slurm", "Submit the run to SLURM, and follow it.")] = False
    kubernetes: Annotated[
        bool, _scheduler("--kubernetes", "Run as a Job on the cluster of kubectl's context, and follow it.")
    ] = False
    nodes: Annotated[int | None, _scheduler("--nodes", "Number of nodes, or pods.", "N")] = None
    name: Annotated[str, _scheduler("--name", "Name of the job. Default: that of the script.", "NAME")] = ""
    sbatch_arg: Annotated[
        list[str] | None, _scheduler("--sbatch-arg", "An option for sbatch, passed on unchanged.", "--partition=gpu")
    ] = None
    srun_arg: Annotated[
        list[str] | None,
        _scheduler("--srun-arg", "An option for the srun that starts the agents, unchanged.", "--cpu-bind=cores"),
    ] = None
    image: Annotated[
        str, _scheduler("--image", "The container image. It must contain rollcall and your program.", "IMG")
    ] = ""
    gpus: Annotated[int, _scheduler("--gpus", "GPUs of each pod. Default: none.", "N")] = 0
    cpu: Annotated[str | None, _scheduler("--cpu", "CPUs that each pod asks for.", "8")] = None
    memory: Annotated[str | None, _scheduler("--memory", "Memory of each pod, as request and limit.", "64Gi")] = None
    namespace: Annotated[
        str | None, _scheduler("--namespace", "Namespace. Default: that of kubectl's context.", "NS")
    ] = None
    workdir: Annotated[str | None, _scheduler("--workdir", "The folder in the image to run in.", "DIR")] = None
    volume: Annotated[
        list[str] | None, _scheduler("--volume", "Mount a PersistentVolumeClaim in each pod.", "CLAIM:/data")
    ] = None
    secret: Annotated[
        list[str] | None, _scheduler("--secret", "Set an environment variable for each key of this Secret.", "NAME")
    ] = None
    shm: Annotated[str | None, _scheduler("--shm", "Largest size of /dev/shm in each pod.", "16Gi")] = None
    toleration: Annotated[
        list[str] | None, _scheduler("--toleration", "Also use nodes with this taint.", "KEY=VALUE")
    ] = None
    priority: Annotated[str | None, _scheduler("--priority", "PriorityClass of the pods.", "NAME")] = None
    nnodes: Annotated[
        str,
        _torchrun(
            "Number of hosts. With --hosts, 2:4: continue while at least 2 of 4 are available.",
            "--nnodes",
            panel=_BY_HAND,
        ),
    ] = "1"
    node_rank: Annotated[int | None, _torchrun("This host's number, from 0.", "--node-rank", panel=_BY_HAND)] = None
    master_addr: Annotated[str | None, _torchrun("The address of host 0.", "--master-addr", panel=_BY_HAND)] = None
    master_port: Annotated[
        int | None,
        _torchrun("A port of host 0. Default: a free one; 29500 with several hosts.", "--master-port", panel=_BY_HAND),
    ] = None
    local_addr: Annotated[
        str | None,
        _torchrun("An address of this host: its interface is used for gloo and NCCL.", "--local-addr", panel=_BY_HAND),
    ] = None
    rdzv_endpoint: Annotated[
        str, _torchrun("HOST:PORT, in place of --master-addr and --master-port.", "--rdzv-endpoint", panel=_BY_HAND)
    ] = ""
    rdzv_backend: Annotated[
        str, _torchrun("static, c10d or rollcall: all three mean rollcall's.", "--rdzv-backend", panel=_BY_HAND)
    ] = "static"
    rdzv_id: Annotated[str, _torchrun("The name of the run.", "--rdzv-id", panel=_BY_HAND)] = ""
    rdzv_conf: Annotated[
        str, _torchrun("timeout=600: seconds to wait for all hosts.", "--rdzv-conf", panel=_BY_HAND)
    ] = ""

    def arguments(self, without: set[str]) -> list[str]:
        """The options that differ from their defaults, as a command line; without those of these names."""
        arguments: list[str] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in without or value == field.default or isinstance(field_option(field.name), _Argument):
                continue
            name = option_name(field.name)
            if value is True:
                arguments.append(name)
            else:
                values = value if isinstance(value, list) else [value]
                arguments += [argument for each in values for argument in (name, str(each))]
        return arguments


_Argument = type(typer.Argument())
_HINTS = get_type_hints(RunOptions, include_extras=True)


def hint(field: str) -> Any:
    """The type of an option, with what typer knows of it."""
    return _HINTS[field]


def field_option(field: str) -> Any:
    """What typer knows of an option."""
    return get_args(_HINTS[field])[-1]


def spellings(field: str) -> tuple[str, ...]:
    """All names of an option. typer keeps the first one as its default until it has read the annotation."""
    option = field_option(field)
    return (str(option.default), *option.param_decls)


def option_name(field: str) -> str:
    """The name on the command line: --max-restarts."""
    return spellings(field)[0]


def as_command(run: Callable[[RunOptions], None]) -> Callable[..., None]:
    """A function whose parameters are the options, which is what typer makes a command of."""

    def command(**values: Any) -> None:
        run(RunOptions(**values))

    command.__doc__, command.__name__ = run.__doc__, run.__name__
    command.__annotations__ = {**_HINTS, "return": None}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                annotation=_HINTS[field.name],
            )
            for field in dataclasses.fields(RunOptions)
        ]
    )
    return command
