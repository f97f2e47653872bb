"""Exit codes and signals in words."""

import signal

# What usually stands behind a signal that nobody on this side sent.
_OFTEN = {
    signal.SIGKILL: "often the out-of-memory killer",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGBUS: "often a full /dev/shm",
    signal.SIGABRT: "native code gave up, as C++ does on an uncaught error",
    signal.SIGFPE: "a crash in native code",
    signal.SIGILL: "an instruction this CPU does not have",
    signal.SIGTERM: "somebody asked it to end",
    signal.SIGINT: "interrupted",
    signal.SIGHUP: "its terminal went away",
    signal.SIGPIPE: "it wrote to a closed pipe",
    signal.SIGXCPU: "its limit of CPU time",
}


def how_it_ended(code: int) -> str:
    """What a rank did, to follow its name: `exited with code 3`, `was killed by SIGKILL: often …`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    often = _OFTEN.get(number)
    return f"was killed by {number.name}" + (f": {often}" if often else "")


def shell_code(code: int) -> int:
    """The exit code that a shell would report: 128 + signal for a signal."""
    return 128 - code if code < 0 else code
