"""The finding that explains the outcome, what to change, and everything as JSON."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rollcall.explain import checks, costs
from rollcall.explain.checks import gpus
from rollcall.explain.costs import Cost, Costs
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Effect, Finding, folded
from rollcall.explain.loading.load import Rank, Run, load
from rollcall.explain.source import text_of
from rollcall.explain.waits import Waits
from rollcall.protocol.rank_ranges import ranks_in_words

# All kinds of findings, and what to change, where that holds for every program.
_CHANGES = {
    "gpu-lost": "look at dmesg for Xid errors; reset the GPU, or leave its host out",
    "network-cut": "look at the network between the hosts, and whether that host is still up",
    "stopped-rank": "",
    "world-incomplete": "start as many ranks as the world size says, and let all of them call init_process_group",
    "group-incomplete": "let all ranks of the world call new_group, also those that are not in the group",
    "ddp-model-mismatch": "build the same model on all ranks before it is wrapped",
    "non-member-call": "call it only where dist.get_rank(group) is not -1",
    "concurrent-calls": "use one group per thread, or one thread for all communication",
    "ddp-unused-parameter": "use all parameters in every forward, or make the module with find_unused_parameters=True",
    "order-inversion": "issue async ops of one group in the same order on all ranks",
    "order-swap": "make these calls in the same order on all ranks",
    "mismatched-op": "make the same call on all ranks",
    "mismatched-reduce-op": "use the same reduce op on all ranks",
    "mismatched-root": "name the same root on all ranks",
    "mismatched-dtype": "use the same dtype on all ranks",
    "mismatched-shape": "use the same shape on all ranks; pad, or exchange the sizes first",
    "mismatched-splits": "let what each rank sends be what the other expects",
    "p2p-dtype": "receive into a tensor of the dtype that is sent",
    "p2p-size": "receive into a tensor of the size that is sent",
    "ddp-uneven-inputs": "give all ranks as many batches, or use DDP's join()",
    "rank-killed": "",
    "rank-failed": "",
    "rank-exited-early": "let all ranks leave together",
    "tag-mismatch": "use the same tag on both sides",
    "wrong-peer": "check the rank it sends to or receives from",
    "cross-group-deadlock": "use the groups in the same order on all ranks",
    "p2p-against-collective": "let both sides make the same kind of call",
    "p2p-deadlock": "let one side receive while the other sends, or use isend, irecv or batch_isend_irecv",
    "unmatched-recv": "let its peer send it, or leave the receive out",
    "stuck-on-device": "look at the GPUs and the network between them: dmesg for Xid errors, NCCL_DEBUG=INFO",
    "busy-rank": "look at what it does there; the others only wait",
    "input-stall": "look at where its data comes from; the others only wait",
    "buffer-overwritten": "leave the buffer alone until wait() has returned",
    "unmatched-send": "receive it, or leave the send out",
    "unwaited-work": "call wait() on the handle before the result is used",
    "missing-rank": "let all ranks of the group make this call, or none",
    "straggler": "look at what it does between the calls; the others only wait",
}
# The same where a finding has this evidence.
_CHANGES_WITH = {
    "throttled": "look at the cooling and the power of that host; leave it out until it is mended",
    "locked": "look at who holds the lock, and why nobody releases it",
    "astray": "give each init_process_group of a program a store or a port of its own",
    "exit_code": "look at why the program exits there",
    "only_receive": "let one of them send first, or leave out a receive that nobody sends for",
    "made_elsewhere": "look at where the data comes from, on all ranks; the others wait for this one",
    "own_part": "give it less to do and the others more, or look at what it does between the calls",
}
# What stopped the run, then what made it wrong, then what made it slow. Advice is never the verdict of a run that did
# not end well.
_EFFECTS: tuple[Effect, ...] = ("stopped", "wrong", "slow", "advice")


@dataclass(frozen=True)
class Explanation:
    run: Run
    outcome: str  # ok, failed, hung, stopped
    findings: list[Finding]
    waits: Waits
    costs: Costs
    deaths: tuple["Death", ...]

    @property
    def verdict(self) -> Finding | None:
        """The finding from which the others follow. Advice explains no failure and no hang."""
        first = self.findings[0] if self.findings else None
        return None if first is None or (first.is_advice and self.outcome != "ok") else first


def explain(folder: Path, attempt: int | None = None, is_hung: bool = False) -> Explanation:
    return explain_run(Evidence(load(folder, attempt, is_hung=is_hung)))


def explain_run(evidence: Evidence) -> Explanation:
    findings, failures = checks.find(evidence)
    return Explanation(
        replace(evidence.run, problems=(*evidence.run.problems, *failures)),
        _outcome(evidence),
        [gpus.with_errors(evidence, each) for each in causes_first(folded(findings))],
        evidence.waits,
        costs.count(evidence),
        _deaths(evidence),
    )


def causes_first(findings: list[Finding]) -> list[Finding]:
    """By what they did to the run, then by the time at which they began: what came first explains what followed. The
    checks leave out what only follows from another finding, such as a wait for a rank that died."""
    return sorted(findings, key=lambda finding: (_EFFECTS.index(finding.effect), finding.since_ns))


@dataclass(frozen=True)
class Death:
    """A rank that died: first those that died by themselves, in order of time, then those that died because of them."""

    rank: int
    how: str
    after_s: float  # after the first


def _deaths(evidence: Evidence) -> tuple[Death, ...]:
    died = [rank for rank in evidence.run.ranks.values() if rank.died_ns]
    died.sort(key=lambda rank: (rank.number not in evidence.died_by_themselves, rank.died_ns))
    return tuple(Death(rank.number, _how(rank), max(rank.died_ns - died[0].died_ns, 0) / 1e9) for rank in died)


def _how(rank: Rank) -> str:
    if rank.error:
        return " at ".join([rank.error.partition(":")[0], *([str(rank.error_site)] if rank.error_site else [])])
    code = rank.exit_code or 0
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _outcome(evidence: Evidence) -> str:
    is_hung = evidence.run.outcome == "stopped" and (evidence.stuck or evidence.run.is_asleep)
    return "hung" if is_hung else evidence.run.outcome


def to_json(explanation: Explanation) -> dict[str, Any]:
    found, counted = explanation.findings, explanation.waits
    return {
        "run": explanation.run.name,
        "attempt": explanation.run.attempt,
        "outcome": explanation.outcome,
        "verdict": as_dict(explanation.verdict) if explanation.verdict else None,
        "findings": [as_dict(each) for each in found],
        "waits": [
            {
                "rank": rank,
                "caused_s": round(float(counted.caused_s[rank]), 6),
                "suffered_s": round(float(counted.suffered_s[rank]), 6),
                "suffered_share": round(counted.share(counted.suffered_s[rank]), 4),
                "last_in_calls": int(counted.last_in[rank]),
                "saved_without_s": round(float(counted.saved_s[rank]), 6),
                "run_shorter_without": round(counted.share(counted.saved_s[rank]), 4),
            }
            for rank in sorted(explanation.run.ranks)
        ],
        "deaths": [asdict(death) for death in explanation.deaths],
        "communication": {
            "by_op": [_cost(cost) for cost in explanation.costs.by_op],
            "by_site": [_cost(cost) for cost in explanation.costs.by_site],
            "by_phase": [_cost(cost) for cost in explanation.costs.by_phase],
            "overlap": round(explanation.costs.overlap, 4),
        },
        "clock_error_s": explanation.run.clock_error_ns / 1e9,
        "problems": list(explanation.run.problems),
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "name": cost.name,
        "ops": cost.ops,
        "size_bytes": cost.size_bytes,
        "blocked_s": round(cost.blocked_s, 6),
        "waiting_s": round(cost.waiting_s, 6),
        "hidden_s": round(cost.hidden_s, 6),
    }


def as_dict(finding: Finding) -> dict[str, Any]:
    """Returns the finding as --json and run.json have it."""
    return {
        "kind": finding.kind,
        "ranks": list(finding.ranks),
        "call": {"op": finding.op, "group": finding.group, "seq": finding.seq},
        "sites": [f"{site.file}:{site.line}" for site in finding.sites],
        "message": finding.message,
        "advice": finding.is_advice,
        "effect": finding.effect,
        "evidence": {str(key): value for key, value in finding.evidence.items()},
    }


def in_words(finding: Finding) -> str:
    """One paragraph: what, who, where, and what to change."""
    lines = [f"{finding.kind} — look at {ranks_in_words(finding.ranks)}", f"  {_cut(finding.message)}"]
    lines += [f"  {site}  {text_of(site)}".rstrip() for site in finding.sites[:_MOST_SITES]]
    if len(finding.sites) > _MOST_SITES:
        lines.append(f"  and {len(finding.sites) - _MOST_SITES} more lines; --json has all")
    if change := advice(finding):
        lines.append(f"  → {change}")
    return "\n".join(lines)


def in_one_line(finding: Finding) -> str:
    return f"{finding.kind} — look at {ranks_in_words(finding.ranks)}: {_cut(finding.message)}"


def _cut(message: str) -> str:
    """What fits into a few lines of a terminal: an error may have any text."""
    line = " ".join(message.split())
    return line if len(line) <= _MOST_TEXT else f"{line[:_MOST_TEXT]} …; --json has all of it"


_MOST_SITES = 5  # lines, and
_MOST_TEXT = 400  # characters: so much of a finding fits on one screen with the tables


def advice(finding: Finding) -> str:
    """What to change; empty if that depends on the program."""
    special = [change for evidence, change in _CHANGES_WITH.items() if evidence in finding.evidence]
    return special[0] if special else _CHANGES[finding.kind]
