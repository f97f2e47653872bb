"""`--preflight`: checks the hosts of a run before it begins. The run then ends, or continues without bad hosts."""

from collections.abc import Callable, Collection
from dataclasses import replace

from rollcall.coordinator.doctor import examine
from rollcall.errors import WorldError
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan, Transport


def checked(plan: Plan, excludes_bad: bool, say: Callable[[str], None]) -> Plan:
    """The plan with the hosts that are well. WorldError if the run must not continue."""
    is_here = plan.transport.kind == "local"
    # This machine is examined by a supervisor of its own, as any other host.
    alone = replace(plan, hosts=(Host("localhost", 1),), transport=Transport("ssh", allow_mixed=True))
    findings = examine(alone if is_here else plan, say, is_deep=True)
    for problem in findings.problems:
        say(f"preflight: {problem}")
    if not findings.problems:
        say(f"preflight: {len(findings.checks)} of {len(findings.checks)} hosts are well")
        return plan
    if not excludes_bad or not findings.bad_hosts:
        raise WorldError("preflight has found problems: fix them, or add --exclude-bad with --spares or --min-hosts")
    return without(plan, findings.bad_hosts)


def without(plan: Plan, bad: Collection[str]) -> Plan:
    """The same run on the other hosts. Spares take the places of the bad ones, as far as there are any."""
    hosts = tuple(host for host in plan.hosts if host.name not in bad)
    spares = max(plan.transport.spares - (len(plan.hosts) - len(hosts)), 0)
    least = plan.transport.min_hosts or plan.places
    if len(hosts) - spares < least:
        raise WorldError(
            f"without {', '.join(bad)} the run has {len(hosts)} of {least} hosts: fix them, or allow it with --spares"
            f" or --min-hosts"
        )
    if plan.transport.kind == "virtual":  # these are made anew, and numbered from one
        hosts = plan.hosts[: len(hosts)]
    return replace(plan, hosts=hosts, transport=replace(plan.transport, spares=spares))
