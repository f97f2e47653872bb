"""Async ops: buffers that change too early, and results that nobody waited for."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_ops, where
from rollcall.explain.loading.table import Ops
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format


def overwritten_buffers(evidence: Evidence) -> Iterator[Finding]:
    """Async ops whose buffer changed before anybody waited for them."""
    table = evidence.table
    changed = table.where(
        table.is_async & ~table.has_failed & table.has(ring_format.WAITED) & table.was_overwritten & ~table.is_event
    )
    if changed:
        first = changed.first()
        same = _ranks_at(changed, first.row)
        message = f"{ranks_in_words(same)} changed the buffer of {where(first)} before it was waited for"
        yield replace(of_ops("buffer-overwritten", same, message, [first]), effect="wrong")


def unwaited_work(evidence: Evidence) -> Iterator[Finding]:
    """Only of ranks that exited with 0: another rank might still have called wait(). DDP's reducer waits for its
    buckets itself, in C++."""
    table = evidence.table
    ended = [rank.number for rank in evidence.run.ranks.values() if rank.exit_code == 0 and not rank.stopped]
    is_unwaited = table.is_async & ~table.has(ring_format.WAITED) & ~table.has_failed & (table.completed_ns == 0)
    is_unwaited &= ~table.has(ring_format.BUCKET)
    unwaited = table.where(is_unwaited & ~table.is_event & np.isin(table.rank, ended))
    if unwaited:
        first = unwaited.first()
        same = _ranks_at(unwaited, first.row)
        message = f"{ranks_in_words(same)} never waited for {where(first)}: its result may have been used too early"
        yield replace(of_ops("unwaited-work", same, message, [first]), effect="advice")


def _ranks_at(ops: Ops, row: int) -> list[int]:
    """The ranks of those ops that are on the same line as this one."""
    rows = ops.rows[ops.table.site[ops.rows] == ops.table.site[row]]
    return sorted(set(ops.table.rank[rows].tolist()))
