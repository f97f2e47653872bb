"""The launcher without a run: call_roll.py HOSTS starts so many agents on this machine, which start no ranks.

It is the launcher's own code, over its own protocol; only that each agent is at the end of a pipe to a process,
where ssh would be. Its figures go into $ROLLCALL_BENCH/figures.json.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import rollcall.cli
import rollcall.coordinator.launcher  # noqa: F401 (with the line above: what `rollcall run` has loaded counts as its memory)
from rollcall.coordinator.agents import Crew, Member
from rollcall.errors import say
from rollcall.protocol.hosts import Host
from rollcall.protocol.messages import Dismiss, Message, Ping, Pong, Present
from rollcall.protocol.plan import Plan, Program, Reach
from rollcall.transport import local, select

MOST_S = 120.0
LOOK_S = 0.1


def main(count: int) -> None:
    hosts = tuple(Host(f"host-{number}", slots=1) for number in range(1, count + 1))
    plan = Plan(Program("command", "true"), slots=1, hosts=hosts, reach=Reach("ssh"), cwd=os.getcwd())
    crew = Crew(hosts, select.by_pipe(plan, lambda host: local.words(sys.executable, "check")), say)
    crew_from_s = time.monotonic()
    crew.start(crew.members)
    hear_all(crew, Present)
    present_s = time.monotonic() - crew_from_s

    pings_from_s = time.monotonic()
    crew.send_all(Ping(time.time_ns()))
    hear_all(crew, Pong)
    pong_s = time.monotonic() - pings_from_s

    memory = memory_bytes()
    crew.send_all(Dismiss())
    wait(lambda: crew.is_gone, crew)
    figures = {"hosts": count, "present_s": present_s, "pong_s": pong_s, **memory}
    Path(os.environ["ROLLCALL_BENCH"], "figures.json").write_text(json.dumps(figures))


def hear_all(crew: Crew, kind: type[Message]) -> None:
    """Until each agent has said this."""
    heard: set[Member] = set()

    def note(member: Member, message: Message) -> None:
        if isinstance(message, kind):
            heard.add(member)

    wait(lambda: len(heard) == len(crew.members), crew, note)


def wait(until: Callable[[], bool], crew: Crew, note: Callable[[Member, Message], None] | None = None) -> None:
    deadline_s = time.monotonic() + MOST_S
    while not until():
        if time.monotonic() > deadline_s:
            crew.kill()
            sys.exit(f"TimeoutError: not all of {len(crew.members)} agents answered within {MOST_S:g} s")
        event = crew.next(LOOK_S)
        if event is not None and note is not None:
            note(*event)


def memory_bytes() -> dict[str, int]:
    """Ours alone, now and at its highest. Not getrusage: its peak knows of the process that forked us, too."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = {"VmRSS": "rss_bytes", "VmHWM": "peak_rss_bytes"}
    return {name: int(lines[key].split()[0]) * 1024 for key, name in names.items()}


if __name__ == "__main__":
    main(int(sys.argv[1]))
