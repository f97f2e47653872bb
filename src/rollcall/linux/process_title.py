"""The command line that ps, top and pkill -f see: a rank shows its program, not the agent it was forked from."""

# Fields of /proc/self/stat, counted behind the parenthesised name: the ends of the memory that holds argv.
_ARG_START, _ARG_END = 48 - 3, 49 - 3
_found: list[tuple[int, int]] = []


def padding(words: list[str], shown: list[str]) -> list[str]:
    """An argument that makes a command line as long as the one that is to be shown in its place."""
    missing = len(_flat(shown)) - len(_flat(words)) - 1
    return [" " * missing] if missing > 0 else []


def find() -> tuple[int, int]:
    """Where this process's command line is in memory: in all forks of it, too, so it is looked up before them."""
    if not _found:
        with open("/proc/self/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        _found.append((int(fields[_ARG_START]), int(fields[_ARG_END])))
    return _found[0]


def show(words: list[str]) -> None:
    """Show these words as this process's command line, as far as its memory for them reaches."""
    import ctypes  # only here: the launcher, which comes by for `padding`, is in a hurry

    start, end = find()
    room = end - start - 1  # the last byte stays NUL, or the kernel reads on into the environment
    ctypes.memmove(start, _flat(words)[:room].ljust(room, b"\0"), room)


def _flat(words: list[str]) -> bytes:
    return b"\0".join(word.encode(errors="surrogateescape") for word in words)
