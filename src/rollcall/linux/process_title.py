"""The command line that ps, top and pkill -f show: a rank shows its program, not the agent it was forked from.

Not setproctitle: it imports logging, which takes the launcher 13 ms, and shows several arguments as one.
"""

# Fields of /proc/self/stat, counted after the parenthesised name: start and end of the memory that holds argv.
_ARG_START, _ARG_END = 48 - 3, 49 - 3
_found: list[tuple[int, int]] = []


def padding(command: list[str], shown: list[str]) -> list[str]:
    """An argument that makes a command line as long as the one that will replace it."""
    missing = len(_flat(shown)) - len(_flat(command)) - 1
    return [" " * missing] if missing > 0 else []


def find() -> tuple[int, int]:
    """Start and end of this process's command line in memory: the same in its forks, so it is read before them."""
    if not _found:
        with open("/proc/self/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        _found.append((int(fields[_ARG_START]), int(fields[_ARG_END])))
    return _found[0]


def room() -> int:
    """How many bytes the command line of this process and its forks may have."""
    start, end = find()
    return end - start - 1  # the last byte stays NUL, otherwise the kernel would show the environment too


def size(command: list[str]) -> int:
    return len(_flat(command))


def show(command: list[str]) -> None:
    """Show this as this process's command line, cut to the memory it has for it."""
    import ctypes  # here: the launcher needs only `padding`, and should not wait for it

    start, length = find()[0], room()
    ctypes.memmove(start, _flat(command)[:length].ljust(length, b"\0"), length)


def _flat(command: list[str]) -> bytes:
    return b"\0".join(word.encode(errors="surrogateescape") for word in command)
