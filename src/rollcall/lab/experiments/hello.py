"""python -m rollcall.lab.experiments.hello

Who is here? Every rank tells the thirteen facts that it knows about itself, what the walkthrough displays, and which
backends its torch has. Then the ranks part and meet again in two other places: over TCP, and in a file.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist

import rollcall
from rollcall import World
from rollcall.lab.experiment import Results, Table, Verdict, always
from rollcall.lab.plots import PALE, Figure, colour_of
from rollcall.lab.runner.command import main

QUESTION = "who is here?"
TRIALS = 1
LEAST_RANKS = 1
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


def measure(world: World, trials: int) -> dict[str, Any]:
    """Every rank says who it is, and where the ranks could meet as well."""
    facts = {
        "facts": world.info.model_dump(),
        "display": rollcall.world.describe(world.rank, world.size),
        "backends": list_backends(),
    }
    return {**facts, "met": meet_elsewhere(world)}


def list_backends() -> list[str]:
    """Which of torch's ways to talk are built into this torch."""
    return [name for name in BACKENDS if dist.is_backend_available(name)]


def meet_elsewhere(world: World) -> dict[str, list[int]]:
    """The same world three times: rank 0 chooses a port and a file, and all meet there. An init method is no more."""
    places: list[Any] = [None, None]
    if world.is_first:
        places = [rollcall.find_free_port(), str(Path(tempfile.mkdtemp()) / "meeting")]
    dist.broadcast_object_list(places, device=world.device)
    port, path = places
    met = {"env://": [world.rank, world.size]}
    world.close()
    for method in (f"tcp://{world.info.master_addr}:{port}", f"file://{path}"):
        with rollcall.init(world.info.backend, init_method=method) as again:
            again.barrier()  # nobody leaves while others still connect
            met[method.partition("/")[0] + "//"] = [again.rank, again.size]
    if world.is_first:
        Path(path).parent.rmdir()
    return met


def once(world: World) -> None:
    """As the walkthrough has it: the display of each rank."""
    world.logger.info(rollcall.world.describe(world.rank, world.size))
    if world.is_first:
        world.logger.info(f"Backends of this torch: {', '.join(list_backends())}")


def judge(results: Results) -> Verdict:
    facts = [result["facts"] for result in results]
    size = len(results)
    hosts = sorted({fact["hostname"] for fact in facts})
    met = sorted(results[0]["met"])
    backends = results[0]["backends"]
    return Verdict(
        f"{size} rank{'s are' if size > 1 else ' is'} here, on {len(hosts)} host{'s' * (len(hosts) > 1)}"
        f" ({', '.join(hosts)}), over {facts[0]['backend']}; they met by {', '.join(met)};"
        f" this torch has {', '.join(backends)}",
        {"ranks": size, "hosts": hosts, "backends": backends, "met": met, "facts": facts},
        (
            always("every rank knows thirteen facts", all(len(fact) == 13 for fact in facts)),
            always("the ranks are 0 to n-1, each once", [fact["global_rank"] for fact in facts] == list(range(size))),
            always(
                "each is a process of its own", len({(fact["hostname"], fact["process_id"]) for fact in facts}) == size
            ),
            always(
                "env://, tcp:// and file:// lead to the same world",
                all(set(map(tuple, r["met"].values())) == {(rank, size)} for rank, r in enumerate(results)),
            ),
        ),
        (
            Table(
                "Thirteen facts of every rank",
                ("fact", *(f"rank {rank}" for rank in range(size))),
                tuple((name, *(str(fact[name]) for fact in facts)) for name in facts[0]),
            ),
            Table(
                "The same as JSON",
                ("rank", "what it logs"),
                tuple((str(rank), json.dumps(fact)) for rank, fact in enumerate(facts)),
            ),
            Table(
                "What the walkthrough displays",
                ("line", *(f"rank {rank}" for rank in range(size))),
                tuple(
                    (lines[0].partition(": ")[0], *(line.partition(": ")[2] for line in lines))
                    for lines in zip(*(result["display"].splitlines() for result in results), strict=True)
                ),
            ),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    from matplotlib.patches import FancyBboxPatch

    facts = [result["facts"] for result in results]
    nodes = sorted({(fact["node_rank"], fact["hostname"]) for fact in facts})
    most = max(fact["local_world_size"] for fact in facts)
    figure.set_size_inches(max(6, 2.1 * most + 0.6), 0.6 + 2.0 * len(nodes))
    axes = figure.add_subplot()
    for row, (node, host) in enumerate(nodes):
        y = -row * 2.1
        axes.add_patch(
            FancyBboxPatch((-0.1, y - 0.25), 2 * most + 0.1, 1.65, boxstyle="round,pad=0.05", fc=PALE, ec="none")
        )
        axes.text(0, y + 1.18, f"host {host}  ·  node_rank {node}", weight="bold")
        for fact in (fact for fact in facts if fact["node_rank"] == node):
            x = 2 * fact["local_rank"]
            colour = colour_of(fact["global_rank"])
            axes.add_patch(
                FancyBboxPatch((x + 0.1, y), 1.7, 0.9, boxstyle="round,pad=0.04", fc="white", ec=colour, lw=2.5)
            )
            axes.text(
                x + 0.95, y + 0.62, f"rank {fact['global_rank']}", ha="center", size=13, weight="bold", color=colour
            )
            axes.text(x + 0.95, y + 0.32, f"local_rank {fact['local_rank']}", ha="center", size=9)
            axes.text(x + 0.95, y + 0.08, f"process {fact['process_id']}", ha="center", size=9)
    axes.set_xlim(-0.3, 2 * most + 0.2)
    axes.set_ylim(-2.1 * (len(nodes) - 1) - 0.45, 1.6)
    axes.axis("off")
    first = facts[0]
    axes.set_title(f"{len(facts)} ranks meet at {first['master_addr']}:{first['master_port']}, over {first['backend']}")


CODE_ON_PAGE = (measure, list_backends, meet_elsewhere)
NEXT = (
    "`rollcall lab hello --virtual-hosts 2 -n 2`: two hosts, so node_rank and local_rank part from the rank",
    "`torchrun --nproc-per-node 3 -m rollcall.lab.experiments.hello`: the same program under another launcher",
    "read what each fact is for in [Know who you are](../init.md)",
)

if __name__ == "__main__":
    main(__file__)
