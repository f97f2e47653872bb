"""What today's tools name in the corpus: TORCH_DISTRIBUTED_DEBUG=DETAIL, and torchfrtrace on torch's flight recorder.

A bug counts as named when one message of the tool has a word for its class and names the ranks to look at. The rules
below are generous: a message that names one rank beside the right ones counts ("Rank 0 is running …, but Rank 1 …"), a
rank that "did not come" is an answer to all bugs where a rank does not come, and no line of source is asked for.
Where the answer is the launcher's (which rank died first, and how), torchrun is that launcher; else ranks are started
by `rollcall run --no-record`, in a fifth of the time. What is done for the tools' sake is in peer_rank.py.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import places
from .corpus import Program

SECONDS = 20
_AT_ONCE = (os.cpu_count() or 1) + 1  # most of the time they only wait
_HERE = Path(__file__).parent
_BIN = Path(sys.executable).parent

_RANKS = re.compile(r"[Rr]anks?(?: |: |=)[{\[]?(\d+(?:, ?\d+)*)")
_SPEAKER = re.compile(r"^\s*\[[Rr]ank ?\d+\]:?")

_LATE = r"failed to pass monitoredBarrier|missing ranks:"
_OTHER_OP = r"Op type:|COLLECTIVE_TYPE_MISMATCH"
_OTHER_SIZE = r"Tensor shapes:|SIZE_OR_SYNTAX_MISMATCH"
_OTHER_TYPE = r"Tensor dtypes:|DTYPE_MISMATCH"
_DIED_FIRST = r"Root Cause .first observed failure"
# Per kind: what in a message is a word for it. A kind that is not here has no word in any message of theirs.
WORDS = {
    "missing-rank": f"{_LATE}|{_OTHER_OP}",
    "order-swap": _OTHER_OP,
    "order-inversion": f"{_OTHER_OP}|{_OTHER_SIZE}",
    "concurrent-calls": f"{_OTHER_OP}|{_OTHER_SIZE}",
    "mismatched-op": _OTHER_OP,
    "mismatched-shape": _OTHER_SIZE,
    "mismatched-splits": _OTHER_SIZE,
    "mismatched-dtype": _OTHER_TYPE,
    "mismatched-reduce-op": r"(?i)reduce ?op",
    "mismatched-root": r"(?i)root ?rank",
    "p2p-size": _OTHER_SIZE,
    "p2p-dtype": _OTHER_TYPE,
    "p2p-deadlock": r"(?i)deadlock",
    "tag-mismatch": r"(?i)\btag\b",
    "p2p-against-collective": f"{_LATE}|{_OTHER_OP}",
    "cross-group-deadlock": f"{_LATE}|deadlock",
    "group-incomplete": _LATE,
    "world-incomplete": r"num_workers_joined|clients joined",
    "busy-rank": _LATE,
    "input-stall": _LATE,
    "stopped-rank": _LATE,
    "network-cut": _LATE,
    "rank-exited-early": f"{_LATE}|{_DIED_FIRST}",
    "rank-failed": f"{_LATE}|{_DIED_FIRST}",
    "rank-killed": f"{_LATE}|{_DIED_FIRST}.*SIG(KILL|ABRT|SEGV|BUS)",
    "ddp-uneven-inputs": f"{_LATE}|{_OTHER_OP}",
    "ddp-unused-parameter": r"did not receive grad",
    "ddp-model-mismatch": r"expects same model|appears not to match",
}
_TOLD_BY_LAUNCHER = ("rank-failed", "rank-killed", "rank-exited-early")


@dataclass(frozen=True)
class Peer:
    name: str
    env: Callable[[Path], dict[str, str]]
    messages: Callable[[str, Path], list[str]]  # from what was printed, and what the ranks left in the folder
    has_launcher: bool = False  # what torchrun says at the end is its word, too


def is_named(answers: Sequence[Program], peer: Peer, folder: Path) -> bool:
    """Run a program under the peer, and see what that says. `answers`: the program with each kind and ranks that are
    right."""
    if not any(program.kind in WORDS for program in answers):
        return False
    told_by_launcher = peer.has_launcher and any(program.kind in _TOLD_BY_LAUNCHER for program in answers)
    text = run(answers[0], folder, peer.env(folder), "torchrun" if told_by_launcher else "rollcall")
    messages = peer.messages(text, folder) + (_summary(text) if told_by_launcher else [])
    return any(names(program, message) for program in answers for message in messages)


def names(program: Program, message: str) -> bool:
    """Whether a message has a word for the bug, and its ranks."""
    word = WORDS.get(program.kind)
    return word is not None and bool(re.search(word, message, re.S)) and _fits(program, message)


def _fits(program: Program, message: str) -> bool:
    named = {int(rank) for ranks in _RANKS.findall(_SPEAKER.sub("", message)) for rank in ranks.split(",")}
    return named >= set(program.look_at) and len(named) <= max(2, len(program.look_at))


def run(program: Program, folder: Path, env: dict[str, str], launcher: str, seconds: int = SECONDS) -> str:
    """What its ranks printed, and the launcher."""
    env = {**os.environ, **env, "ROLLCALL_DIR": str(folder / "rollcall"), "OMP_NUM_THREADS": "1"}
    with places.place(program, folder / "rollcall") as place:
        words = {
            "torchrun": ["torchrun", "--standalone", f"--nproc-per-node={program.ranks}"],
            "rollcall": ["rollcall", "run", "--no-record", *place.words, "--grace", "10"],
        }[launcher]
        words = [str(_BIN / words[0]), *words[1:], str(_HERE / "peer_rank.py"), str(program.path)]
        done = subprocess.run(
            ["timeout", "--signal=INT", "--kill-after=15", str(seconds), *words],
            cwd=folder,
            env=env | place.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    logs = sorted((folder / "rollcall" / "runs").glob("latest/logs/*/*.log"))
    return "\n".join([done.stdout, done.stderr, *(log.read_text(errors="replace") for log in logs)])


def _summary(text: str) -> list[str]:
    """The block of torchrun's that names who failed first."""
    _, _, block = text.partition("Root Cause")
    rank = re.search(r"rank\s*: (\d+)", block)
    return [f"Root Cause (first observed failure) rank {rank[1]} {block}"] if rank else []


def _lines(text: str, folder: Path) -> list[str]:
    """Each line is a message, but for those that show source: what stands there was written by the user."""
    plain = [_SPEAKER.sub("", line) for line in text.splitlines()]
    return [line for line in plain if not line.startswith("  ")]


def trace(text: str, folder: Path) -> list[str]:
    """torchfrtrace's words, one message for each collective that it complains about."""
    words = [str(_BIN / "torchfrtrace"), "--allow-incomplete-ranks", "--prefix", "rank_", str(folder / "dumps")]
    # It does not always come to an end.
    told = subprocess.run(["timeout", str(SECONDS), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return re.findall(r"missing ranks: .*|Culprit rank \d+;.*?(?=Culprit rank|\n|$)", told.stdout + told.stderr)


def dumping(folder: Path) -> dict[str, str]:
    (folder / "dumps").mkdir()
    return {
        "PEER_DUMPS": str(folder / "dumps"),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    }


PEERS = (
    Peer("TORCH_DISTRIBUTED_DEBUG=DETAIL", lambda folder: {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, _lines, True),
    Peer("torchfrtrace (its dumps mended)", dumping, trace),
)


def scores(bugs: Sequence[Sequence[Program]]) -> dict[str, list[Program]]:
    """Per peer, the bugs that it names. Of each bug, all right answers, the best first."""

    def judge(answers: Sequence[Program]) -> list[bool]:
        with contextlib.ExitStack() as stack:
            folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in PEERS]
            return [is_named(answers, peer, folder) for peer, folder in zip(PEERS, folders, strict=True)]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        named = list(pool.map(judge, bugs))
    return {
        peer.name: [answers[0] for answers, found in zip(bugs, named, strict=True) if found[place]]
        for place, peer in enumerate(PEERS)
    }
