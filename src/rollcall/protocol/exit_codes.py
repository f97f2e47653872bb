"""Exit codes, signals and lists of ranks in words, and back."""

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


def list_of(numbers: list[int]) -> str:
    """Numbers as people write them: 0-3,7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def ranks_of(text: str) -> tuple[int, ...] | None:
    """`0`, `0,2-3` or `all`. ValueError if it is none of these."""
    if text == "all":
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ranks.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(ranks))
