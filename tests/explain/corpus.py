"""The corpus: programs with one planted bug each, and their correct twins. `make corpus` prints the score of all.

.venv/bin/python -m tests.explain.corpus [--peers] [WORD …]

Only programs whose path has one of the words. With --peers, the scores of today's tools beside ours (peers.py).
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fuzz.score import fault_in

from rollcall.errors import RollcallError
from rollcall.explain.verdict import explain as explain_folder
from rollcall.explain.verdict import to_json
from rollcall.runs import find_run

from . import places

CORPUS = Path(__file__).parents[1] / "corpus"
_FACT = re.compile(r"^(ranks|hosts|cut|kind|look at|ends):\s*(.*?)\s*$", re.M)
_SECONDS = 40
_BUSY_SECONDS = 14  # who is busy is not hung, and would go on


@dataclass(frozen=True)
class Program:
    """What its docstring promises, and its guilty lines."""

    path: Path
    ranks: int
    kind: str
    look_at: tuple[int, ...]
    ends: str
    guilty: tuple[int, ...]
    hosts: int = 0  # 0: this machine alone
    way: str = ""  # to the hosts: ssh or virtual
    cut: str = ""  # the host whose network fails in the middle

    @classmethod
    def read(cls, path: Path) -> "Program":
        text = path.read_text()
        facts = dict(_FACT.findall(text.split('"""')[1]))
        ranks = tuple(int(rank) for rank in facts.get("look at", "").split(",") if rank)
        guilty = tuple(n for n, line in enumerate(text.splitlines(), 1) if line.rstrip().endswith("# GUILTY"))
        hosts, _, way = facts.get("hosts", "0").partition(", ")
        cut = facts.get("cut", "")
        return cls(path, int(facts["ranks"]), facts["kind"], ranks, facts["ends"], guilty, int(hosts), way, cut)

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def is_twin(self) -> bool:
        return self.kind == "none"


def programs() -> list[Program]:
    return [Program.read(path) for path in sorted(CORPUS.glob("*/*.py"))]


def explain(program: Program, folder: Path) -> dict[str, Any]:
    """Run it as a user would, and explain what came out, in this process: a command costs a second of a core."""
    # A host that is not heard of any more is noticed after ten seconds: until then it is no hang.
    words = ["--hang-after", "20" if program.way == "ssh" else "6", "--on-hang", "stop", "--grace", "1"]
    words += ["--timeout", str(_BUSY_SECONDS if program.kind == "busy-rank" else _SECONDS), str(program.path)]
    with places.place(program, folder) as place:
        subprocess.run(
            [sys.executable, "-m", "rollcall", "run", *place.words, *words],
            cwd=folder,
            env={**os.environ, "ROLLCALL_DIR": str(folder), **place.env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    try:
        told = to_json(explain_folder(find_run(None, folder / "runs")))
    except RollcallError as error:  # nothing was recorded: no answer is a wrong answer, and a twin's is noise
        return _unexplained(str(error))
    fault = fault_in(told)
    return _unexplained(fault) if fault else told


def _unexplained(why: str) -> dict[str, Any]:
    finding = {"kind": "unexplained", "ranks": [], "sites": [], "message": why}
    return {"outcome": "unexplained", "verdict": finding, "findings": [finding]}


def is_right(program: Program, verdict: dict[str, Any] | None) -> bool:
    """Right kind, right ranks, right line."""
    if verdict is None:
        return False
    lines = {f"{program.path}:{line}" for line in program.guilty}
    right = (verdict["kind"], tuple(verdict["ranks"])) == (program.kind, program.look_at)
    return right and bool(lines & set(verdict["sites"]))


def main(words: list[str], with_peers: bool) -> None:
    wanted = [p for p in programs() if not words or any(word in str(p.path) for word in words)]
    no_hosts = places.why_no_hosts()
    chosen = [program for program in wanted if not (program.hosts and no_hosts)]
    if len(chosen) < len(wanted):
        print(f"left out, since there are no hosts here ({no_hosts}): {len(wanted) - len(chosen)} programs")

    def judge(program: Program) -> tuple[Program, dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            return program, explain(program, Path(folder))

    right, noisy = [], []
    with ThreadPoolExecutor(2) as pool:
        for program, told in pool.map(judge, chosen):
            if program.is_twin and told["findings"]:
                noisy.append(program)
                print(f"noise   {program.name}: {told['findings'][0]['message']}")
            elif not program.is_twin and is_right(program, told["verdict"]):
                right.append(program)
            elif not program.is_twin:
                got = told["verdict"] or {"kind": "nothing", "ranks": [], "sites": []}
                sites = [Path(site).name for site in got["sites"]]
                wanted = f"wanted {program.kind} {program.look_at}"
                print(f"missed  {program.name}: {wanted}, got {got['kind']} {got['ranks']} {sites}")
    bugs = [program for program in chosen if not program.is_twin]
    twins = len(chosen) - len(bugs)
    print(
        f"{len(right)} of {len(bugs)} bugs with the right kind, ranks and line; noise on {len(noisy)} of {twins} twins"
    )
    if with_peers:
        _show_peers(bugs)


def _show_peers(bugs: list[Program]) -> None:
    from . import peers

    for name, named in peers.scores([[bug] for bug in bugs]).items():
        kinds = sorted({program.kind for program in named})
        print(f"{len(named)} of {len(bugs)} bugs with the right class and ranks: {name} ({', '.join(kinds) or 'none'})")


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word != "--peers"], "--peers" in sys.argv)
