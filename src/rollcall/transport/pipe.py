"""Agents that a child process of the launcher reaches (ssh, nsenter): its stdin and stdout are the connection."""

import contextlib
import json
import subprocess
from collections.abc import Callable

from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan
from rollcall.transport.connection import Connection, StartAgents


def starter(plan: Plan, command: Callable[[Host], list[str]]) -> StartAgents:
    """`command` makes the command for one host."""
    settings = json.dumps(dict(plan.transport.env)).encode() + b"\n"

    def start(hosts: list[Host], connected: Callable[[Host, Connection], None]) -> None:
        for host in hosts:
            process = subprocess.Popen(
                command(host),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=plan.cwd,
                start_new_session=True,  # the terminal's Ctrl-C comes to us alone, and we pass it on
            )
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(settings)
                process.stdin.flush()
            connected(host, Connection(process.stdout, process.stdin, process))

    return start
