"""The launcher without a run: start_agents.py HOSTS starts so many agents on this machine, which start no ranks.

It is the launcher's own code, over its own protocol; only that each agent is at the end of a pipe to a process,
where ssh would be. Its figures go into $ROLLCALL_BENCH/figures.json.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import rollcall.cli.app
import rollcall.coordinator.launcher  # noqa: F401 (with the line above: what `rollcall run` has loaded counts as its memory)
from rollcall.coordinator.agents import Agent, Agents
from rollcall.errors import say
from rollcall.protocol.hosts import Host
from rollcall.protocol.messages import Finish, HostInfo, Message, Ping, Pong
from rollcall.protocol.plan import Plan, Program, Transport
from rollcall.transport import pipe, supervisor_command

MOST_S = 120.0
LOOK_S = 0.1


def main(count: int) -> None:
    hosts = tuple(Host(f"host-{number}", slots=1) for number in range(1, count + 1))
    plan = Plan(Program("command", "true"), hosts=hosts, transport=Transport("ssh"), cwd=os.getcwd())
    words = supervisor_command.make(sys.executable, "check")
    agents = Agents(hosts, pipe.starter(plan, lambda host: words), say)
    from_s = time.monotonic()
    agents.start(agents.all)
    hear_all(agents, HostInfo)
    present_s = time.monotonic() - from_s

    pings_from_s = time.monotonic()
    agents.send_all(Ping(time.time_ns()))
    hear_all(agents, Pong)
    pong_s = time.monotonic() - pings_from_s

    memory = memory_bytes()
    agents.send_all(Finish())
    wait(lambda: agents.are_gone, agents)
    figures = {"hosts": count, "present_s": present_s, "pong_s": pong_s, **memory}
    Path(os.environ["ROLLCALL_BENCH"], "figures.json").write_text(json.dumps(figures))


def hear_all(agents: Agents, kind: type[Message]) -> None:
    """Until each agent has said this."""
    heard: set[Agent] = set()

    def note(agent: Agent, message: Message) -> None:
        if isinstance(message, kind):
            heard.add(agent)

    wait(lambda: len(heard) == len(agents.all), agents, note)


def wait(until: Callable[[], bool], agents: Agents, note: Callable[[Agent, Message], None] | None = None) -> None:
    deadline_s = time.monotonic() + MOST_S
    while not until():
        if time.monotonic() > deadline_s:
            agents.kill()
            sys.exit(f"TimeoutError: not all of {len(agents.all)} agents answered within {MOST_S:g} s")
        event = agents.next(LOOK_S)
        if event is not None and note is not None:
            note(*event)


def memory_bytes() -> dict[str, int]:
    """Ours alone, now and at its highest. Not getrusage: its peak knows of the process that forked us, too."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"VmRSS": "rss_bytes", "VmHWM": "peak_rss_bytes"}
    return {name: int(lines[key].split()[0]) * 1024 for key, name in names.items()}


if __name__ == "__main__":
    main(int(sys.argv[1]))
