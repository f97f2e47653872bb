"""--sync: copies the working tree to hosts without a shared disk, by rsync over the same ssh. Respects .gitignore."""

import shlex
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rollcall.errors import UsageError, WorldError
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan
from rollcall.transport import ssh
from rollcall.units import plural

_AT_ONCE = 16
_NOT_FOUND = 127


def copy(plan: Plan, tell: Callable[[str], None]) -> None:
    """Copy to all hosts; files that only they have stay."""
    if shutil.which("rsync") is None:
        raise UsageError("--sync needs rsync here and on the hosts: install it, or use a shared disk")
    hosts = [host for host in plan.hosts if not ssh.is_here(host)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        failed = [text for text in pool.map(lambda host: _copy_to(host, plan.cwd), hosts) if text]
    if failed:
        raise WorldError(f"--sync failed: {'; '.join(failed)}")
    tell(f"copied {plan.cwd} to {plural(len(hosts), 'host')}")


def command(host: Host, folder: str) -> list[str]:
    name = f"[{host.name}]" if ":" in host.name else host.name
    destination = f"{host.user}@{name}" if host.user else name
    return [
        "rsync",
        "--archive",
        "--compress",
        "--mkpath",
        "--filter=:- .gitignore",
        "--exclude=.git",
        "--exclude=.rollcall",
        f"--rsh={shlex.join([*ssh.client(), *ssh.options()])}",
        f"{folder}/",
        f"{destination}:{folder}/",
    ]


def _copy_to(host: Host, folder: str) -> str:
    """The error; empty if there was none."""
    done = subprocess.run(command(host, folder), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 0:
        return ""
    errors = done.stderr.strip().splitlines()
    if done.returncode == _NOT_FOUND or any("rsync: command not found" in line for line in errors):
        return f"{host.name}: rsync is not installed there"
    remedy = ssh.remedy(host, "", errors)
    return f"{host.name}: {errors[0] if errors else f'exit code {done.returncode}'}{f' — {remedy}' if remedy else ''}"
