"""One rehearsal, step by step: the library, the folder, the ranks, the replay, the verdict."""

import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollcall import native
from rollcall.coordinator.run_folder import RunFolder, command_line
from rollcall.errors import RollcallError, UsageError, say
from rollcall.explain.loading.load import Run, load
from rollcall.explain.verdict import Explanation, explain
from rollcall.protocol.plan import Program
from rollcall.record import sites
from rollcall.rehearse import check, kinds, replay
from rollcall.rehearse.check import CheckResult
from rollcall.rehearse.fixed_point import FixedPoint, Progress, Rehearsed
from rollcall.rehearse.forked_ranks import ForkedRanks, RankResult
from rollcall.rehearse.kinds import Kinds
from rollcall.rehearse.memory import use
from rollcall.rehearse.memory.use import RanksUse
from rollcall.rehearse.network import traffic
from rollcall.rehearse.network.traffic import Traffic
from rollcall.rehearse.rank import unsupported
from rollcall.rehearse.settings import RehearsalSettings, check_torch
from rollcall.report.rehearsed import MEMORY_FILE, TRAFFIC_FILE
from rollcall.torch_version import torch_version
from rollcall.worker.fork_server import ForkServer


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal has found."""

    settings: RehearsalSettings
    folder: Path
    seconds: float
    passes: int
    unsettled: tuple[int, ...]
    unstable: tuple[str, ...]  # lines whose values differ each time
    guessed: tuple[str, ...]  # lines after which ranks failed, and whose values also come from ranks that are not here
    cut: tuple[int, ...]  # ranks that were stopped after --steps
    unknowns: tuple["UnknownRead", ...]
    unsupported: tuple["UnsupportedRanks", ...]
    explanation: Explanation
    kinds: Kinds
    memory: tuple[RanksUse, ...]
    traffic: Traffic
    comparison: CheckResult | None = None  # with real ranks

    @property
    def fits(self) -> bool:
        return all(use.fit(each.use, self.settings.gpu) != "no" for each in self.memory)

    @property
    def is_well(self) -> bool:
        differs = self.comparison is not None and bool(self.comparison.differences)
        return (
            self.fits
            and not (self.unsupported or self.unsettled or differs)
            and (self.explanation.verdict is None or self.explanation.verdict.is_advice)
        )


@dataclass(frozen=True)
class UnknownRead:
    """A line that read an unknown value, and the lines that did more with the value than print it."""

    place: str  # train.py:33
    assumed: str
    reads: int
    ranks: tuple[int, ...]
    decided: tuple[str, ...]


@dataclass(frozen=True)
class UnsupportedRanks:
    """Ranks whose program does something that cannot be rehearsed."""

    sentence: str
    ranks: tuple[int, ...]


def build_library() -> Path:
    """The pretended device, compiled on the first use."""
    check_torch(torch_version())
    if found := native.find(native.PRETENDED_CUDA):
        return found
    say("compiling the pretended device, once (half a minute)")
    try:
        return native.build(native.PRETENDED_CUDA)
    except RollcallError as error:
        raise UsageError(f"a rehearsal needs a device that has to be compiled: {error}") from None


def run(
    settings: RehearsalSettings,
    program: Program,
    server: ForkServer,
    on_progress: Progress = lambda *_: None,
    with_check: bool = False,
    by_kinds: bool = False,
) -> Rehearsal:
    """`by_kinds`: not all ranks, but at least one of each kind."""
    folder = RunFolder.create_for_command([program.target, *program.args], None)
    facts = {"world_size": settings.world_size, "gpus_per_host": settings.gpus_per_host, "gpu": settings.gpu.name}
    folder.save(command=command_line(), recorded_by="rollcall rehearse", rehearsed=facts)
    began_s = time.monotonic()
    ranks = ForkedRanks(settings, program, folder.path, server)
    point = FixedPoint(ranks, settings.world_size, folder.path, on_progress)
    if by_kinds:
        _run_all_kinds(point, settings, program, folder.path)
        settings = replace(settings, ranks=tuple(sorted(point.results)))
    else:
        point.add(settings.ranks)
    found = point.outcome()
    on_progress("the ranks wait for each other", 1)
    of_all = kinds.spread(kinds.calls_of(load(folder.path)), settings) if by_kinds else None
    hung = _replay(folder.path, [rank for rank, result in found.ranks.items() if result.is_cut])
    _write_outcome(folder, settings, found, hung)
    explanation = explain(folder.path)
    return Rehearsal(
        settings,
        folder.path,
        time.monotonic() - began_s,
        found.passes,
        found.unsettled,
        found.unstable,
        found.guessed,
        tuple(sorted(rank for rank, result in found.ranks.items() if result.is_cut)),
        _unknowns(found.ranks),
        _unsupported(found.ranks, explanation.run, folder.path / "files"),
        explanation,
        of_all or kinds.kinds_of(kinds.calls_of(explanation.run)),
        _memory(folder.path, settings, found.ranks, by_kinds),
        _traffic(folder.path, settings, found.ranks, explanation.run),
        check.check(explanation.run, program, settings.steps, folder.path, _sharing_places(found.ranks))
        if with_check
        else None,
    )


def _run_all_kinds(point: FixedPoint, settings: RehearsalSettings, program: Program, folder: Path) -> None:
    """Runs ranks until each kind has one. It ends at the latest when all ranks have run."""
    chosen = kinds.first_ranks(settings, Path(program.target))
    while chosen:
        point.add(chosen)
        chosen = kinds.more_ranks(load(folder), settings)


def _replay(folder: Path, cut: list[int]) -> list[int]:
    replayed = replay.of_folder(folder, cut)
    hung = replayed.run()
    replayed.write()
    return hung


def _write_outcome(folder: RunFolder, settings: RehearsalSettings, found: Rehearsed, hung: list[int]) -> None:
    """No end is recorded for ranks that hang, or that were stopped after --steps."""
    codes = {
        str(rank): result.exit_code for rank, result in found.ranks.items() if rank not in hung and not result.is_cut
    }
    outcome = "failed" if any(codes.values()) else "hung" if hung else "ok"
    folder.note_attempt(0, world_size=settings.world_size, exit_codes=codes, outcome=outcome, hung=bool(hung))
    folder.save(outcome=outcome, exit_code=int(outcome != "ok"))


def _unknowns(ranks: dict[int, RankResult]) -> tuple[UnknownRead, ...]:
    merged: dict[tuple[str, str], list[Any]] = defaultdict(lambda: [0, set(), set()])
    for rank, result in ranks.items():
        for each in result.unknowns:
            place = _place(each["file"], each["line"])
            found = merged[place, each["assumed"]]
            found[0] += each["reads"]
            found[1].add(rank)
            found[2] |= each["decided"]
    return tuple(
        UnknownRead(place, assumed, reads, tuple(sorted(readers)), tuple(sorted(decided)))
        for (place, assumed), (reads, readers, decided) in sorted(merged.items())
    )


def _sharing_places(ranks: dict[int, RankResult]) -> set[str]:
    """Lines at which objects that hold unknown numbers are sent to other ranks."""
    return {place for result in ranks.values() for each in result.unknowns for place in each["told"]}


def _place(file: str, line: int) -> str:
    """train.py:33; of a library, its folder too, since a script may have the same name."""
    parts = Path(file).parts
    return f"{parts[-1] if sites.is_users_file(file) else '/'.join(parts[-2:])}:{line}"


def _unsupported(ranks: dict[int, RankResult], run: Run, files: Path) -> tuple[UnsupportedRanks, ...]:
    merged: dict[str, list[int]] = defaultdict(list)
    for rank, result in sorted(ranks.items()):
        sentence = result.unsupported or _crash(result.exit_code, run, rank) or _others_file(result, ranks, files)
        if sentence:
            merged[sentence].append(rank)
    return tuple(UnsupportedRanks(sentence, tuple(numbers)) for sentence, numbers in merged.items())


def _others_file(result: RankResult, ranks: Iterable[int], files: Path) -> str:
    """A rank does not see the files of others: which of them exist would depend on the order in which ranks run."""
    path, place = result.missing
    if not path or not any(Path(f"{files}/rank-{each}{path}").exists() for each in ranks):
        return ""
    first = f"{place}: it reads {Path(path).name}, which another rank writes"
    return f"{first}; a rehearsed rank sees its own files and those of the first one: leave this part out"


def _crash(exit_code: int, run: Run, rank: int) -> str:
    """A tensor without data has no address: C code that reads it crashes here, and would not on a GPU."""
    if -exit_code not in (signal.SIGSEGV, signal.SIGBUS):
        return ""
    stack = run.ranks[rank].own_stack if rank in run.ranks else ()
    place = f"{_place(stack[0].file, stack[0].line)}: " if stack else ""
    return f"{place}code in C crashed, as it does if it reads a tensor, which has no data here; {unsupported.STUB}"


def _traffic(folder: Path, settings: RehearsalSettings, ranks: dict[int, RankResult], run: Run) -> Traffic:
    marks = {rank: result.marks for rank, result in ranks.items()}
    measured = traffic.measure(run, marks, settings.gpus_per_host)
    traffic.write(folder / TRAFFIC_FILE, measured)
    return measured


def _memory(
    folder: Path, settings: RehearsalSettings, ranks: dict[int, RankResult], by_kinds: bool
) -> tuple[RanksUse, ...]:
    """A rank that did not run needs as much memory as the rank of its kind that ran."""
    needs = {rank: result.memory for rank, result in ranks.items()}
    if by_kinds:
        all_ranks = range(settings.world_size)
        needs = {rank: needs[kinds.stand_in(rank, needs, settings)] for rank in all_ranks}
    merged = use.merge(needs.items())
    use.write(folder / MEMORY_FILE, merged, settings.gpu)
    return merged
