"""`rollcall demo`: what rollcall does, on this machine alone and on real ranks. Each step is a command to type.

roll_call, training, two_hosts, rehearsed  the programs that some of the steps run
"""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from rollcall.errors import UsageError

_NEEDED = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}  # pictures, and data for the training
_HERE = os.path.relpath(Path(__file__).parent)
_STEPS = {
    "A roll call: four ranks print who they are": ["run", "-n", "4", f"{_HERE}/roll_call.py"],
    "A barrier, with and without: whose result comes before whose message?": ["lab", "barrier", "--trials", "50"],
    "A small training: DDP on the handwritten digits of scikit-learn": [
        "run", "-n", "4", "--preload", "sklearn.datasets", f"{_HERE}/training.py",
    ],
    "Three deadlocks, and which ranks are in them": ["lab", "deadlock"],
    "Two hosts on this machine: one master, one worker": [
        "run", "--virtual-hosts", "2", "-n", "1", f"{_HERE}/two_hosts.py",
    ],
    "Before it costs anything: 64 ranks with GPUs that are not here, and which of them would hang": [
        "rehearse", "-n", "64", "--steps", "0", f"{_HERE}/rehearsed.py",
    ],
}  # fmt: skip


# A rehearsal that finds something ends with 1; with 2, and a sentence, where this torch or a missing compiler does not
# allow one.
_EXPECTED = {"rehearse": (1, 2)}


def show() -> int:
    """Run every step; the first that fails ends the demo with its exit code."""
    if missing := [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]:
        raise UsageError(f"the demo needs {' and '.join(missing)}: pip install 'torch-rollcall[demo]'")
    console = Console(highlight=False)
    for title, arguments in _STEPS.items():
        console.print(f"\n[bold]{title}[/]\n[dim]rollcall {shlex.join(arguments)}[/]", soft_wrap=True)
        sys.stdout.flush()
        code = subprocess.run([sys.executable, "-m", "rollcall", *arguments], check=False).returncode
        if code not in _EXPECTED.get(arguments[0], (0,)):
            return code
    console.print(f"\nAll {len(_STEPS)} steps have run: [bold]rollcall runs[/] lists them.")
    return 0
