"""`rollcall demo`: the main job on this machine alone, each act on real ranks: plain scripts, and two of the lab."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rollcall.cli import host_options
from rollcall.coordinator.launcher import run
from rollcall.protocol.plan import Plan, Program


@dataclass(frozen=True)
class Act:
    """A script, and how it is run; or the name of an experiment of the lab."""

    title: str
    script: str = ""
    lab: str = ""
    ranks: int = 4
    preload: tuple[str, ...] = ()  # what to import once for all ranks
    virtual_hosts: int | None = None

    @property
    def options(self) -> str:
        """As one would type them."""
        hosts = f"--virtual-hosts {self.virtual_hosts} " if self.virtual_hosts else ""
        return f"{hosts}-n {self.ranks}" + "".join(f" --preload {module}" for module in self.preload)


_ACTS = (
    Act("The roll call: four ranks say who they are", "roll_call.py"),
    Act("A barrier, with and without: whose result comes before whose message?", lab="barrier"),
    Act(
        "A small training: DDP on the handwritten digits of scikit-learn",
        "training.py",
        preload=("sklearn.datasets",),
    ),
    Act("Everyone waits: three deadlocks, and who is in them", lab="deadlock"),
    Act("Two hosts on this machine: one master, one worker", "two_hosts.py", ranks=1, virtual_hosts=2),
)


def show() -> int:
    """Run every act as `rollcall run` would; the first that fails ends the demo with its exit code."""
    console = Console(highlight=False)
    for act in _ACTS:
        path = Path(__file__).parent / act.script
        command = f"rollcall lab {act.lab}" if act.lab else f"rollcall run {act.options} {os.path.relpath(path)}"
        console.print(f"\n[bold]{act.title}[/]\n[dim]{command}[/]", soft_wrap=True)
        if code := _experiment(act.lab) if act.lab else run(_plan(act, path)):
            return code
    console.print(f"\nAll {len(_ACTS)} acts ran on real ranks: [bold]rollcall runs[/] lists them.")
    return 0


def _experiment(name: str) -> int:
    """In a process of its own, as one would type it."""
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "rollcall", "lab", name], check=False).returncode


def _plan(act: Act, path: Path) -> Plan:
    found = host_options.named("", None, act.virtual_hosts, str(act.ranks), is_alone=True, environ=os.environ)
    return Plan(
        Program("script", str(path)),
        hosts=found.hosts,
        transport=host_options.transport(found.kind),
        preload=act.preload,
        run_id=f"demo-{path.stem}",
        cwd=os.getcwd(),
    )
