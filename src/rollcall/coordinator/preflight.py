"""What hosts answered before a run, in sentences: which are missing or differ, where the master is. Pure functions."""

from collections.abc import Callable

from rollcall.coordinator.agents import Agent
from rollcall.errors import UsageError, WorldError
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.protocol.messages import HostInfo, MasterReached
from rollcall.protocol.plan import LOOPBACK, Plan
from rollcall.transport import ssh

_MOST_NAMED = 8


def missing(agents: list[Agent], plan: Plan) -> str:
    """The hosts that have not answered, each with how far it came."""
    absent = [agent for agent in agents if agent.info is None or agent.lost]
    told = [f"{agent.name}: {state_of(agent)}" for agent in absent[:_MOST_NAMED]]
    more = [f"and {len(absent) - _MOST_NAMED} more"] if len(absent) > _MOST_NAMED else []
    return f"{len(absent)} of {len(agents)} hosts did not answer — {'; '.join([*told, *more])}"


def state_of(agent: Agent) -> str:
    """How far a host came, why not further, and what to do."""
    words = [agent.lost or agent.stage]
    if remedy := ssh.remedy(agent.host, agent.stage, list(agent.errors)):
        words.append(remedy)
    return " — ".join(words)


def why_disconnected(agent: Agent) -> str:
    """Why a connection ended that should not have; to follow the host's name."""
    last = agent.errors[-1] if agent.errors else ""
    if agent.exit_code is not None:
        how = how_it_ended(agent.exit_code)
        return f"lost its agent, which {how}; its ranks were ended with it" if agent.is_ready else f"its agent {how}"
    if agent.is_prepared:
        return f"was lost: {last or 'its connection ended'}"
    if agent.stage != "not yet reached":
        return f"{agent.stage}{f' ({last})' if last else ''}"
    return last or "its agent ended before it answered"


def differences(agents: list[Agent]) -> str:
    """The versions that differ between hosts, with the hosts that have each; empty where all agree."""
    facts: dict[str, Callable[[HostInfo], str]] = {
        "torch": lambda p: p.torch,
        "Python": lambda p: ".".join(p.python.split(".")[:2]),
        "rollcall": lambda p: p.rollcall,
    }
    found = []
    for name, read in facts.items():
        hosts: dict[str, list[str]] = {}
        for agent in agents:
            if agent.info is not None:
                hosts.setdefault(read(agent.info) or "missing", []).append(agent.name)
        if len(hosts) > 1:
            found.append(f"{name} is " + ", ".join(f"{v} on {_some(names)}" for v, names in hosts.items()))
        elif list(hosts) == ["missing"]:
            found.append(f"{name} is missing on {_some(next(iter(hosts.values())))}")
    return f"{'; '.join(found)}: install the same everywhere, or use --allow-mixed" if found else ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def slots_of(agent: Agent, ranks: str) -> int:
    """How many ranks a host gets: its own number, or what it has been asked for."""
    if agent.host.slots or agent.info is None:
        return agent.host.slots
    gpus, cpus = agent.info.gpus, agent.info.cpus
    if ranks == "gpu" and not gpus:
        raise UsageError(f"-n gpu, but {agent.name} has none: use a number, as in {agent.name}:2, or -n cpu")
    return {"gpu": gpus, "cpu": cpus}.get(ranks) or gpus or cpus


def nearest_address(master: Agent, addresses: list[str], port: int, reached: dict[Agent, MasterReached]) -> str:
    """The first of the master's addresses under which all other hosts reach it."""
    if not reached:
        return addresses[0] if len(addresses) == 1 else LOOPBACK
    for address in addresses:
        if all(address in each.own for each in reached.values()):
            return address
    return _explain(master, addresses, port, reached)


def _explain(master: Agent, addresses: list[str], port: int, reached: dict[Agent, MasterReached]) -> str:
    if not addresses:
        raise WorldError(f"{master.name} has no address but loopback: bring its network up, or use --master-addr")
    cut_off = [agent for agent, each in reached.items() if not each.own]
    if not cut_off:
        links = "; ".join(f"{m.name} reaches it at {', '.join(each.own)}" for m, each in reached.items())
        raise WorldError(f"no address of {master.name} is reached by all hosts ({links}): use --master-addr")
    told = [f"{m.name}: {unreachable(master, addresses, port, reached[m])}" for m in cut_off[:_MOST_NAMED]]
    raise WorldError("; ".join(told))


def unreachable(master: Agent, addresses: list[str], port: int, reached: MasterReached | None) -> str:
    """Why a host cannot reach the master, and what to do."""
    errors = reached.errors if reached is not None else {}
    address, error = next(iter(errors.items()), (addresses[0] if addresses else "?", "no answer"))
    return (
        f"cannot reach {address}:{port} on {master.name} ({error}) — firewall? Open the port (--master-port fixes its"
        f" number), or name another address of {master.name} with --master-addr"
    )
