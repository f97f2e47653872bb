"""What launcher and agent say to each other: one frozen dataclass per message; channel.py sends them.

Dataclasses and not pydantic: the agent sends its first message before it has imported torch, and pydantic's import
would take longer than all messages of a run.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, dataclass_transform

STDOUT, STDERR = 1, 2  # a rank's output streams
DEBUGGER = "debugger"  # the purpose of a rank's connection to a debugger's terminal


@dataclass_transform(frozen_default=True)
class Message:
    """The base of all messages, each of which is a dataclass; `data`, where there is one, travels as raw bytes."""

    kinds: ClassVar[dict[str, type["Message"]]] = {}

    def __init_subclass__(cls) -> None:
        # Python compiles every method that it makes for a dataclass. Those of all messages took 25 ms of every start:
        # so only `__init__` is made of each, and the type checker sees to it that nobody changes a message.
        dataclasses.dataclass(cls, eq=False, repr=False)
        Message.kinds[cls.__name__] = cls

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class UnknownMessage(Message):
    """Received in place of a message that this version of rollcall does not know."""

    kind: str

    @property
    def problem(self) -> str:
        """Returns words that follow the name of the host that sent it."""
        return (
            f"sent the message {self.kind}, which rollcall here does not know: install the same version on all hosts"
            " (--allow-mixed does not help)"
        )


# From the launcher to the agent.


class Prepare(Message):
    """What this host is to run. The agent gets ready to start ranks, and waits for the first attempt."""

    plan: dict[str, Any]
    folder: str
    stdin_fd: int | None = None  # the launcher's standard input, where the agent has inherited it
    env: dict[str, str] = dataclasses.field(default_factory=dict)  # to be added to the environment of all there
    hosts: int = 1  # how many there are in the run


class Begin(Message):
    """Start the ranks of an attempt, at this place in the world."""

    attempt: int
    node_rank: int
    nnodes: int
    first_rank: int
    world_size: int
    master_addr: str
    master_port: int  # 0: any free one
    interface: str | None = None


class Cancel(Message):
    """The attempt has failed elsewhere: end its ranks here."""

    attempt: int


class Finish(Message):
    """The run is over: the agent exits."""


class Stop(Message):
    """End the ranks: with this signal first, and after the grace period by SIGKILL; with `now`, by SIGKILL at once."""

    signal: int
    now: bool = False


class ForwardSignal(Message):
    """The launcher got this signal: pass it on to ranks that have a handler for it."""

    signal: int


class DumpStacks(Message):
    """Have the ranks write their stacks, and check which of the other hosts can still be reached."""

    others: dict[str, str] = dataclasses.field(default_factory=dict)  # their addresses by name


class SendRings(Message):
    """Somebody watches the run: send what is new in the rings of this attempt."""

    attempt: int


class CollectStacks(Message):
    """Somebody asks where the ranks are: find out in a way that their program does not notice, and send it."""

    number: int  # of the question; the answer repeats it


class AskRank(Message):
    """Have a rank do something that its program does not know of: `request["do"]` says what."""

    rank: int
    number: int  # of the question; the answer repeats it
    request: dict[str, Any]


class ToRank(Message):
    """What a terminal says to a rank, over the connection that the rank has opened; nothing: the terminal is gone."""

    rank: int
    purpose: str
    data: bytes = b""


class ConnectToRank(Message):
    """Somebody at the launcher wants to talk to a port that this rank has opened on its loopback interface."""

    rank: int
    purpose: str
    port: int


class Debugging(Message):
    """Whether a rank of the run is stopped in a debugger. Meanwhile no hang is reported, and ops may take longer."""

    is_on: bool


class Ping(Message):
    """A heartbeat, and a question for the host's clocks."""

    sent_ns: int  # by the sender's monotonic clock


class OpenPort(Message):
    """To the master: listen on a port where the ranks of this attempt will meet, and answer there with this token."""

    attempt: int
    port: int
    token: str


class ClosePort(Message):
    """To the master: all hosts have connected; stop answering, for ranks connect there next. Keep the port."""


class ReachMaster(Message):
    """To the others: at which of these addresses does the master answer with the token?"""

    attempt: int
    addresses: list[str]
    port: int
    token: str


class MeasureLink(Message):
    """How fast is the connection to the host that answers with the token there?"""

    addresses: list[str]
    port: int
    token: str


class CountGpus(Message):
    """How many GPUs does torch see? Takes a while, because torch is imported."""


class CheckHost(Message):
    """Is this host well? Takes seconds: it computes, copies and reduces. `folder` is where a run would be."""

    folder: str


# From the agent to the launcher.


class HostInfo(Message):
    """The agent's first message: which host this is, and its versions."""

    host: str
    python: str
    torch: str
    rollcall: str
    cpus: int
    gpus: int


class Pong(Message):
    """The answer to a ping, with this host's time by both clocks."""

    sent_ns: int
    wall_ns: int
    monotonic_ns: int


class Ready(Message):
    """Torch is imported, ranks can be forked. `shared`: this host sees the launcher's folder of the run."""

    shared: bool


class Started(Message):
    """All ranks of this host run. `pids` is by rank (as a string: JSON knows no other keys)."""

    attempt: int
    host: str
    node_rank: int
    world_size: int
    master: str
    pids: dict[str, int]


class Output(Message):
    """What a rank wrote: stream 1 is stdout, 2 is stderr."""

    rank: int
    stream: int
    data: bytes = b""


class Ended(Message):
    """A rank ended, by itself or because it was `asked` to; a negative exit code is the signal that killed it."""

    attempt: int
    rank: int
    exit_code: int
    ended_ns: int
    asked: bool
    cause: str = ""  # what is known beyond the exit code, to follow the rank's name


class Done(Message):
    """All ranks of this host have ended with 0."""

    attempt: int


class AttemptOver(Message):
    """The attempt failed, and all its ranks on this host are gone."""

    attempt: int
    elsewhere: str = ""  # where another host failed that this launcher does not lead: its sentence


class Standstill(Message):
    """Whether the ranks of this host have made no progress for `--hang-after`, and whether one of them is in an op; or
    whether all of them wait for locks, and have not run at all for as long."""

    is_still: bool
    is_waiting: bool
    is_asleep: bool = False

    @classmethod
    def of_all(cls, hosts: "Sequence[Standstill]") -> "Standstill":
        """Combines those of all hosts of a run: if one of them moves, the others may only wait for it."""
        is_still = bool(hosts) and all(host.is_still for host in hosts)
        is_asleep = is_still and all(host.is_asleep for host in hosts)
        return cls(is_still, is_still and any(host.is_waiting for host in hosts), is_asleep)

    @property
    def is_hang(self) -> bool:
        return self.is_waiting or self.is_asleep


class StacksDumped(Message):
    """The ranks have written their stacks, and the launcher has the files."""

    unreachable: list[str] = dataclasses.field(default_factory=list)
    idle: dict[str, bool] = dataclasses.field(default_factory=dict)  # by rank: whether it used no processor
    # Of hosts that were started by hand, which this launcher does not lead: their rings, where this host can read them.
    # Of all hosts: ranks that compute, and of which this one can read no ring.
    elsewhere: list[str] = dataclasses.field(default_factory=list)
    computing: list[int] = dataclasses.field(default_factory=list)


class StacksCollected(Message):
    """Where the ranks of this host are that have not ended: by rank, a RankStack as a dict."""

    number: int
    stacks: dict[str, dict[str, Any]]


class RankAnswered(Message):
    """What a rank answered; `answer["error"]` is a sentence if it could not do it."""

    rank: int
    number: int
    answer: dict[str, Any]


class RankConnected(Message):
    """A rank of this host wants to talk to somebody at the launcher."""

    rank: int
    purpose: str


class FromRank(Message):
    """What a rank says over its connection."""

    rank: int
    purpose: str
    data: bytes = b""


class RankDisconnected(Message):
    """The rank has ended, or has closed the connection."""

    rank: int
    purpose: str


class RingsSent(Message):
    """What is new in the rings has been sent."""


class File(Message):
    """Part of a file that belongs into the run's folder, from a host that does not share it."""

    path: str
    at: int
    data: bytes = b""


class PortOpened(Message):
    """The master listens: its port, and its interfaces by address, the address that others most likely reach first."""

    attempt: int
    port: int
    addresses: dict[str, str]


class PortClosed(Message):
    """The master no longer answers with the token; it keeps the port."""


class MasterReached(Message):
    """Where the master answered, and from which own address and interface (by the master's address)."""

    attempt: int
    own: dict[str, tuple[str, str]]
    errors: dict[str, str]


class LinkMeasured(Message):
    """The connection to another host: round trip and throughput, or why there are none."""

    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0
    error: str = ""


class GpusCounted(Message):
    """The GPUs that torch sees."""

    gpus: int


class HostChecked(Message):
    """The facts of the host, or why there are none."""

    facts: dict[str, Any]
    error: str = ""


class Note(Message):
    """A sentence for the user."""

    text: str


class Refused(Message):
    """The agent cannot do what it was asked to: the sentence, and the exit code of the run."""

    text: str
    exit_code: int


class AgentEnded(Message):
    """The last message of a supervisor whose agent was killed."""

    exit_code: int
