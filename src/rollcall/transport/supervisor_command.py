"""The command that starts a supervisor, and with it an agent, on a host: by ssh, by a scheduler, in a namespace."""

from rollcall.protocol.channel import GREETING

# Without the current folder on its path: nothing that lies there may take the place of a module it imports.
# One line without newlines: it passes through the shells of other hosts, too.
_SUPERVISOR = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); exec('try:\\n from rollcall.agent.supervisor import main\\n"
    f'except ImportError as error: sys.exit(print("\\\\n{GREETING}rollcall not found by " + sys.executable) or 1)\');'
    " main(sys.argv[1])"
)


def make(python: str, purpose: str) -> list[str]:
    """Unbuffered, as torchrun starts its ranks: they inherit it."""
    return [python, "-u", "-c", _SUPERVISOR, purpose]
