"""Where the name service does not answer, do not wait for it.

torch looks up a name for every peer it connects to, if only for its log lines. `::ffff:127.0.0.1` has
none, and where DNS is silent each rank would wait ten seconds to learn that.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Mapping

_PATIENCE_S = 0.05
_IMPATIENT = "attempts:1 timeout:1"  # the least that the C library knows


def impatient_env(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to add to the environment of processes that will look up names: nothing where DNS answers."""
    if "RES_OPTIONS" in environ or _names_answer():
        return {}
    return {"RES_OPTIONS": _IMPATIENT}


def _names_answer() -> bool:
    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(OSError):  # no name is an answer, too
            socket.getnameinfo(("::ffff:127.0.0.1", 1, 0, 0), 0)
        answered.set()

    threading.Thread(target=ask, name="names", daemon=True).start()
    return answered.wait(_PATIENCE_S)
