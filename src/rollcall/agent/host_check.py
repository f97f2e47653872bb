"""Checks this host in a separate process, which imports torch and ends."""

import contextlib
import json
import subprocess
import sys

from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import HostChecked

_MOST_S = 60.0  # an idle host takes a few seconds; one that takes this long is bad


def report(channel: Channel, folder: str) -> None:
    with contextlib.suppress(OSError):  # the launcher is gone
        channel.send(_check(folder))


def _check(folder: str) -> HostChecked:
    command = [sys.executable, "-m", "rollcall.agent.health", folder]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_MOST_S, stdin=subprocess.DEVNULL, check=False
        )
        return HostChecked(json.loads(ran.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return HostChecked({}, f"its checks took longer than {_MOST_S:g} s")
    except (ValueError, IndexError):
        last = ran.stderr.strip().splitlines()[-1:] or [f"exit code {ran.returncode}"]
        return HostChecked({}, f"its checks failed ({last[0]})")
