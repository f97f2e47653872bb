"""The agent: one process per host that starts its ranks, watches them, and ends them.

The launcher starts the agent of its own machine (`main`). On other hosts the supervisor forks the agent (`follow`).
Both then do the same: they import torch, prepare a fork server, and run one attempt after the other when the launcher
says so. If the launcher ends, the agent ends its ranks. It builds on torch elastic's agent, with a rendezvous and a way
to start processes of its own.
"""

import contextlib
import importlib
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from rollcall.agent import hand_over
from rollcall.agent.dispatcher import Dispatcher
from rollcall.agent.fast_import import begin as fast_import
from rollcall.agent.fast_import import preload
from rollcall.agent.heartbeat import Heartbeat
from rollcall.agent.host_info import host_info
from rollcall.agent.host_questions import HostQuestions
from rollcall.compat import torch_dns
from rollcall.errors import RollcallError, UsageError
from rollcall.linux import open_files, prctl, process_title
from rollcall.protocol.channel import Channel, take_stdio
from rollcall.protocol.messages import Note, Prepare, Ready, Refused
from rollcall.protocol.plan import Plan
from rollcall.torch_version import refuse_older, torch_version
from rollcall.worker import fresh_interpreter
from rollcall.worker import main as worker_main
from rollcall.worker.fork_safety import folder_of, why_not_to_fork
from rollcall.worker.fork_server import ForkServers

_MANY_RANKS = 17  # this many look-ups at once are too many for some name servers
_RANKS_PER_SERVER = 8
_MOST_SERVERS = 4
_FILES_PER_RANK = 5  # two pipes, its log, the times of its log, its connection to the store
_OWN_FILES = 16  # beyond those that are open at the start
_AMPLE = 4  # times more than needed: debuggers, stacks, further connections to the store
_NOT_INSTALLED = (
    "ranks are not recorded: this Python imports rollcall but has not installed it, and fresh interpreters are "
    "recorded by a file of the installation; install rollcall with pip"
)


def main() -> NoReturn:
    """Runs on the launcher's own machine. It is started before the launcher knows what to run, if anything."""
    prctl.become_subreaper()
    prctl.ignore_stop_signals()
    channel = Channel.on(*take_stdio())
    # Torch's libraries are loaded by now: the rest of its import needs one core, and the launcher may have the other.
    channel.send(host_info())
    chose_threads = fast_import.choose_threads()
    fast_import.import_torch()
    questions = HostQuestions(channel)
    prepare = questions.until_prepared()
    if prepare is None:
        os._exit(2)  # the launcher has found that there is nothing to run
    _run(channel, prepare, questions, chose_threads)


def follow(link: socket.socket, reader_fd: int, writer_fd: int, supervisor: int) -> NoReturn:
    """Runs on another host, forked by its supervisor, which answers the launcher until torch is imported."""
    prctl.become_subreaper()
    fast_import.begin()
    chose_threads = fast_import.choose_threads()
    fast_import.import_torch()
    received = hand_over.take(link)
    link.close()
    if received is None:
        os._exit(1)
    prepare, listener_fds = received
    channel = Channel.on(reader_fd, writer_fd)
    _run(channel, prepare, HostQuestions(channel, listener_fds), chose_threads, supervisor, listener_fds)


@dataclass(frozen=True)
class Imported:
    """What a warm server has imported for its runs, beyond torch: a cold agent would do so for such a plan."""

    preload: tuple[str, ...]
    late: tuple[str, ...]
    record: bool

    @classmethod
    def by(cls, plan: Plan) -> "Imported":
        return cls(plan.preload, preload.of_torch(plan.program, plan.cwd), plan.record)


def begin_warm(stdin_fd: int, imported: Imported, chose_threads: bool) -> NoReturn:
    """Runs in a fork of a warm server: torch is imported. Fork servers come first, from a process that has nothing more
    loaded than a cold agent; what only the agent needs is imported while the launcher reads its command line."""
    prctl.ignore_stop_signals()
    channel = Channel.on(*take_stdio())
    channel.send(host_info())
    most = min(_MOST_SERVERS, os.cpu_count() or 1)
    process_title.find()
    servers = ForkServers.fork(most, worker_main.run_request, (*channel.filenos(), stdin_fd), _settle)
    importlib.import_module("rollcall.agent.worker_group")
    questions = HostQuestions(channel)
    prepare = questions.until_prepared()
    if prepare is None:
        os._exit(2)  # the launcher has found that there is nothing to run
    if Imported.by(Plan.from_dict(prepare.plan)) != imported:
        channel.send(Refused("the warm server has imported other modules: set ROLLCALL_WARM=0 to start without it", 1))
        os._exit(1)
    _run(channel, prepare, questions, chose_threads, warm=servers)


def _run(
    channel: Channel,
    prepare: Prepare,
    questions: HostQuestions,
    chose_threads: bool,
    supervisor: int | None = None,
    listener_fds: list[int] | None = None,
    warm: ForkServers | None = None,
) -> NoReturn:
    """This host's part of the run, from here to the end of the process."""
    _change_environ(prepare, chose_threads)
    plan = Plan.from_dict(prepare.plan)
    try:
        refuse_older(torch_version())
        if warm is None:
            plan, servers = _fork_servers(channel, prepare, plan, listener_fds or [])
        else:
            plan, servers = _settle_servers(channel, prepare, plan, warm, chose_threads)
        _warn_if_not_recorded(channel, plan)
        code = _serve(channel, prepare, plan, servers, questions, supervisor)
    except RollcallError as error:
        with contextlib.suppress(BrokenPipeError):  # the launcher may be gone, too
            channel.send(Refused(str(error), error.exit_code))
        code = error.exit_code
    from rollcall.linux import process_tree  # here: it imports psutil

    process_tree.end_all(0)
    # Not sys.exit: tearing torch down takes a third of a second, and nothing is left to save.
    os._exit(code)


def _warn_if_not_recorded(channel: Channel, plan: Plan) -> None:
    is_fresh_python = plan.start == "fresh" and plan.program.kind != "command"
    if plan.record and is_fresh_python and not fresh_interpreter.has_autostart():
        channel.send(Note(_NOT_INSTALLED))


def _change_environ(prepare: Prepare, chose_threads: bool) -> None:
    os.environ.update(prepare.env)
    if chose_threads and Plan.from_dict(prepare.plan).slots == 1:
        del os.environ["OMP_NUM_THREADS"]  # a rank alone may have all cores


def _settle_servers(
    channel: Channel, prepare: Prepare, plan: Plan, servers: ForkServers, chose_threads: bool
) -> tuple[Plan, ForkServers]:
    """Servers that were forked before the plan was known catch up with `_fork_servers`."""
    reason = servers.settle(_server_count(plan), {"prepare": asdict(prepare), "chose_threads": chose_threads})
    plan = _fresh_if(reason, channel, plan)
    servers.prepare(plan.slots)
    return plan, servers


def _settle(request: dict[str, Any]) -> str:
    """Does in such a server what a cold agent does before it forks, but for the imports. Says why ranks are not
    forked."""
    prepare = Prepare(**request["prepare"])
    _change_environ(prepare, request["chose_threads"])
    plan = Plan.from_dict(prepare.plan)
    reason = why_not_to_fork(plan) if plan.start == "warm" else None
    _answer_names(prepare, plan, forks=plan.start == "warm" and not reason)
    return reason or ""


def _fork_servers(channel: Channel, prepare: Prepare, plan: Plan, private_fds: list[int]) -> tuple[Plan, ForkServers]:
    """Servers that fork ranks; and the plan, with a fresh start where forking is not safe."""
    if plan.start == "warm":
        late = preload.of_torch(plan.program, plan.cwd)
        import_once(late, plan.record, plan.preload, folder_of(plan.program, plan.cwd))
        plan = _fresh_if(why_not_to_fork(plan), channel, plan)
    _answer_names(prepare, plan, forks=plan.start == "warm")
    process_title.find()
    inherited = () if prepare.stdin_fd is None else (prepare.stdin_fd,)
    servers = ForkServers.fork(
        _server_count(plan), worker_main.run_request, (*channel.filenos(), *inherited, *private_fds)
    )
    servers.prepare(plan.slots)
    return plan, servers


def _server_count(plan: Plan) -> int:
    return min(_MOST_SERVERS, os.cpu_count() or 1, 1 + plan.slots // _RANKS_PER_SERVER)


def _fresh_if(reason: str | None, channel: Channel, plan: Plan) -> Plan:
    """The plan, with fresh interpreters where there is a reason not to fork."""
    if not reason:
        return plan
    channel.send(Note(f"{reason}: ranks start as fresh interpreters"))
    return replace(plan, start="fresh")


def _answer_names(prepare: Prepare, plan: Plan, forks: bool) -> None:
    """Keep torch from waiting for host names. Among several hosts, addresses without a name are common."""
    if prepare.hosts > 1 or (forks and (plan.slots >= _MANY_RANKS or torch_dns.are_slow())):
        torch_dns.have_torch_give_up()


def _serve(
    channel: Channel,
    prepare: Prepare,
    plan: Plan,
    servers: ForkServers,
    questions: HostQuestions,
    supervisor: int | None,
) -> int:
    """One attempt after the other; the exit code says only whether all was well here."""
    from rollcall.agent.host_folder import HostFolder  # here: ranks are forked from a process without it

    _check_open_files(plan.slots)
    folder = HostFolder.of(plan, Path(prepare.folder))
    dispatcher = Dispatcher(questions)
    heartbeat = Heartbeat(channel, dispatcher.handle)
    heartbeat.read()
    if supervisor is not None:
        heartbeat.require(supervisor)
    # Before elastic is imported: the launcher answers during the import.
    channel.send(Ready(folder.shared))
    from rollcall.agent.worker_group import WorkerGroupAgent

    _quiet("torch.distributed.elastic")
    stdin_fd = os.open(os.devnull, os.O_RDONLY) if prepare.stdin_fd is None else prepare.stdin_fd
    agent = WorkerGroupAgent(plan, channel, dispatcher, questions, folder, servers, stdin_fd)
    dispatcher.worker_group = agent
    try:
        return agent.serve()
    finally:
        folder.remove()


def _check_open_files(ranks: int) -> None:
    """Ranks keep the limit that they would have without us: the servers that fork them exist already."""
    needed = open_files.count() + _OWN_FILES + _FILES_PER_RANK * ranks
    allowed = open_files.allow(_AMPLE * needed)
    if allowed < needed:
        raise UsageError(
            f"on {socket.gethostname()} a process may open {allowed} files, but the agent of {ranks} ranks needs"
            f" {needed} at least: allow more with `ulimit -n {_AMPLE * needed}`, or start fewer ranks there"
        )


def _quiet(package: str) -> None:
    """The launcher tells how ranks ended. Elastic gives each of its loggers a level of its own."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.ERROR)


def import_once(late: Sequence[str], record: bool, modules: Sequence[str], folder: Path) -> None:
    """What every rank would import sooner or later: of torch, of the recorder, and of the user's modules, which are
    found in the folder where the program would find them."""
    for name in late:
        importlib.import_module(name)
    if record:
        with contextlib.suppress(Exception):  # a torch that the recorder does not fit; rank 0 says so, and runs
            importlib.import_module("rollcall.record.recorder").prepare()
    first = str(folder)
    sys.path.insert(0, first)
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"--preload {name} cannot be imported ({error}): check the name") from error
    sys.path.remove(first)
