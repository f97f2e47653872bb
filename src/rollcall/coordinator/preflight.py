"""What the answers to the roll call come to, in sentences: who is missing, who differs, where the master is. Pure."""

from collections.abc import Callable

from rollcall.coordinator.agents import Member
from rollcall.errors import UsageError, WorldError
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.protocol.messages import Present, Tried
from rollcall.protocol.plan import LOOPBACK, Plan
from rollcall.transport import ssh

_MOST_NAMED = 8


def missing(members: list[Member], plan: Plan) -> str:
    """The hosts that have not answered, each with how far it came."""
    absent = [member for member in members if member.present is None or member.lost]
    told = [f"{member.name}: {state_of(member)}" for member in absent[:_MOST_NAMED]]
    more = [f"and {len(absent) - _MOST_NAMED} more"] if len(absent) > _MOST_NAMED else []
    return f"{len(absent)} of {len(members)} hosts did not answer — {'; '.join([*told, *more])}"


def state_of(member: Member) -> str:
    """How far a host came, why not further, and what to do."""
    words = [member.lost or member.stage]
    if remedy := ssh.remedy(member.host, member.stage, list(member.errors)):
        words.append(remedy)
    return " — ".join(words)


def why_gone(member: Member) -> str:
    """Why a line ended that should not have; to follow the host's name."""
    last = member.errors[-1] if member.errors else ""
    if member.agent_code is not None:
        return f"lost its agent, which {how_it_ended(member.agent_code)}; its ranks were ended with it"
    if member.ordered:
        return f"was lost: {last or 'its connection ended'}"
    if member.stage != "not yet reached":
        return f"{member.stage}{f' ({last})' if last else ''}"
    return last or "its agent ended before it answered"


def differences(members: list[Member]) -> str:
    """The versions that differ between hosts, with the hosts that have each; empty where all agree."""
    facts: dict[str, Callable[[Present], str]] = {
        "torch": lambda p: p.torch,
        "Python": lambda p: ".".join(p.python.split(".")[:2]),
        "rollcall": lambda p: p.rollcall,
    }
    found = []
    for name, read in facts.items():
        hosts: dict[str, list[str]] = {}
        for member in members:
            if member.present is not None:
                hosts.setdefault(read(member.present) or "missing", []).append(member.name)
        if len(hosts) > 1:
            found.append(f"{name} is " + ", ".join(f"{v} on {_some(names)}" for v, names in hosts.items()))
        elif list(hosts) == ["missing"]:
            found.append(f"{name} is missing on {_some(next(iter(hosts.values())))}")
    return f"{'; '.join(found)}: install the same everywhere, or use --allow-mixed" if found else ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def slots_of(member: Member, ranks: str) -> int:
    """How many ranks a host gets: its own number, or what it has been asked for."""
    if member.host.slots or member.present is None:
        return member.host.slots
    gpus, cpus = member.present.gpus, member.present.cpus
    if ranks == "gpu" and not gpus:
        raise UsageError(f"-n gpu, but {member.name} has none: use a number, as in {member.name}:2, or -n cpu")
    return {"gpu": gpus, "cpu": cpus}.get(ranks) or gpus or cpus


def nearest_address(master: Member, addresses: list[str], port: int, tried: dict[Member, Tried]) -> str:
    """The first of the master's addresses under which all other hosts reach it."""
    if not tried:
        return addresses[0] if len(addresses) == 1 else LOOPBACK
    for address in addresses:
        if all(address in each.own for each in tried.values()):
            return address
    return _explain(master, addresses, port, tried)


def _explain(master: Member, addresses: list[str], port: int, tried: dict[Member, Tried]) -> str:
    if not addresses:
        raise WorldError(f"{master.name} has no address but loopback: bring its network up, or use --master-addr")
    cut_off = [member for member, each in tried.items() if not each.own]
    if not cut_off:
        ways = "; ".join(f"{m.name} reaches it at {', '.join(each.own)}" for m, each in tried.items())
        raise WorldError(f"no address of {master.name} is reached by all hosts ({ways}): use --master-addr")
    told = [f"{m.name}: {unreachable(master, addresses, port, tried[m])}" for m in cut_off[:_MOST_NAMED]]
    raise WorldError("; ".join(told))


def unreachable(master: Member, addresses: list[str], port: int, tried: Tried | None) -> str:
    """Why a host cannot reach the master, and what to do."""
    errors = tried.errors if tried is not None else {}
    address, error = next(iter(errors.items()), (addresses[0] if addresses else "?", "no answer"))
    return (
        f"cannot reach {address}:{port} on {master.name} ({error}) — firewall? Open the port (--master-port fixes its"
        f" number), or name another address of {master.name} with --master-addr"
    )
