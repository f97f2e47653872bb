"""Runs a program on recorded ranks, and reads what is in their rings."""

import json

import torch.distributed as dist

from rollcall.explain.loading.load import Op, load
from rollcall.record import attach
from tests import ranks as processes
from tests.rollcall_command import Runner

HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
t = torch.ones(4)
"""


def ops_of(runner: Runner, body: str, ranks: int = 2) -> dict[int, tuple[Op, ...]]:
    """The ops of each rank. The body begins on line 5."""
    run_recorded(runner, HEAD + body, ranks)
    return {rank.number: rank.ops for rank in load(runner.latest().resolve()).ranks.values()}


def run_recorded(runner: Runner, script: str, ranks: int = 2, is_recorded: bool = True) -> list[processes.Ended]:
    """How each rank of this script ended, on ranks that are forked from a server of this process: a tenth of the work
    of a `rollcall run`, and the ranks record in the same way."""
    folder = runner.folder / ".rollcall" / "runs" / f"run-{len(list(runner.folder.glob('.rollcall/runs/run-*')))}"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**attach.first_facts("a test", ranks), "outcome": "ok"}))
    runner.latest().unlink(missing_ok=True)
    runner.latest().symlink_to(folder.name)
    path = runner.script(script)
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # it outlives every rank, as an agent's
    places = processes.by_hand(ranks, store.port, MASTER_ADDR=store.host, TORCHELASTIC_USE_AGENT_STORE=True)
    started: list[processes.Rank] = []
    try:
        for rank, place in enumerate(places):
            environ = processes.clean_environ(**place, ROLLCALL_NATIVE=runner.env["ROLLCALL_NATIVE"])
            record = {"folder": str(folder), "rank": rank, "world_size": ranks, "attempt": 0}
            started.append(processes.warm_ranks().start(path, environ, runner.folder, record if is_recorded else None))
        ended = [rank.wait() for rank in started]
    finally:
        for each in started:
            each.end()
    assert all(each.code == 0 for each in ended), [each.err for each in ended]
    return ended
