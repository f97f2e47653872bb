"""Starts agents by ssh. It uses OpenSSH's client, so the user's config, agent, jump hosts and ControlMaster work.

$ROLLCALL_SSH replaces the command `ssh`, as in ROLLCALL_SSH="ssh -F my_config".
"""

import os
import shlex
import socket

from rollcall.protocol.channel import GREETING
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan
from rollcall.transport import supervisor_command

# Never wait for a password in silence; notice a dead connection in either direction.
_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
_REMEDIES = {
    "Permission denied": "its sshd does not take your key: `ssh-copy-id {0}`, or add the key to your ssh agent",
    "Host key verification failed": "its host key is not known here: `ssh {0}` once by hand",
    "Could not resolve hostname": "nobody knows this name: check it, or give its address in ~/.ssh/config",
    "Connection refused": "no sshd listens there: start it, or give its port in ~/.ssh/config",
    "No route to host": "check that it is up and on this network",
    "timed out": "check that it is up and that no firewall drops port 22",
    "Connection closed": "its sshd closed the connection: see its log there",
}


def command(host: Host, plan: Plan, purpose: str) -> list[str]:
    """The command that starts one agent on one host."""
    if is_here(host):
        return supervisor_command.make(plan.transport.python, purpose)
    return [*client(), "-T", *options(), host.destination, "--", _remote(plan, purpose)]


def options() -> list[str]:
    return [word for option in _OPTIONS for word in ("-o", option)]


def client() -> list[str]:
    return shlex.split(os.environ.get("ROLLCALL_SSH", "ssh"))


def is_here(host: Host) -> bool:
    """Whether this machine is meant: then ssh is not needed."""
    return host.user is None and host.name in ("localhost", "127.0.0.1", "::1", socket.gethostname())


def _remote(plan: Plan, purpose: str) -> str:
    """A command for any login shell: a plain sh does the work, and prints how far it has come."""
    cwd, python = shlex.quote(plan.cwd), shlex.quote(plan.transport.python)
    start = shlex.join(supervisor_command.make(plan.transport.python, purpose))
    script = (
        f"echo; echo '{GREETING}ssh connected';"
        f" cd {cwd} 2>/dev/null || {{ echo '{GREETING}ssh connected, no folder '{cwd}; exit 1; }};"
        f" command -v {python} >/dev/null || {{ echo '{GREETING}ssh connected, python not found: '{python}; exit 1; }};"
        f" exec {start}"
    )
    return f"exec /bin/sh -c {shlex.quote(script)}"


def remedy(host: Host, stage: str, errors: list[str]) -> str:
    """What to do about a host that did not answer, by its last messages."""
    if "no folder" in stage:
        return "make it there, or copy this one with --sync"
    if "python not found" in stage:
        return "install it at the same path, or name another with --python"
    if "rollcall not found" in stage:
        return "install rollcall there for this Python, or name another with --python"
    said = " ".join(errors)
    return next((text.format(host.destination) for key, text in _REMEDIES.items() if key in said), "")
