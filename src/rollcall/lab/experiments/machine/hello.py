"""rollcall lab hello

Who is here? Every rank returns the thirteen facts that it knows about itself, what `rollcall.display` prints, and which
backends its torch has. Then the ranks leave their group and form it twice more, with the init methods tcp:// and file://.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist

import rollcall
from rollcall import World
from rollcall.lab.experiment import Experiment, Results, Verdict, always, table
from rollcall.lab.plots import Figure, add_box, colour_of
from rollcall.units import plural

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


def measure(world: World, trials: int) -> dict[str, Any]:
    """Every rank says who it is, and joins the world by each init method."""
    facts = {
        "facts": world.info.model_dump(),
        "display": rollcall.world.describe(world.rank, world.size),
        "backends": list_backends(),
    }
    return {**facts, "init_methods": try_init_methods(world)}


def list_backends() -> list[str]:
    """The backends that are built into this torch."""
    return [name for name in BACKENDS if dist.is_backend_available(name)]


def try_init_methods(world: World) -> dict[str, list[int]]:
    """The same world three times. Rank 0 chooses a port and a file; an init method only says where ranks find them."""
    addresses: list[Any] = [None, None]
    if world.is_first:
        addresses = [rollcall.find_free_port(), str(Path(tempfile.mkdtemp()) / "store")]
    dist.broadcast_object_list(addresses, device=world.device)
    port, path = addresses
    joined = {"env://": [world.rank, world.size]}
    world.close()
    for method in (f"tcp://{world.info.master_addr}:{port}", f"file://{path}"):
        with rollcall.init(world.info.backend, init_method=method) as again:
            again.barrier()  # no rank leaves while others still connect
            joined[method.partition("/")[0] + "//"] = [again.rank, again.size]
    if world.is_first:
        shutil.rmtree(Path(path).parent, ignore_errors=True)  # the last rank to leave may just be removing the file
    return joined


def once(world: World) -> None:
    """Run once, node by node: each rank logs what `rollcall.display` prints."""
    world.logger.info(rollcall.world.describe(world.rank, world.size))
    if world.is_first:
        world.logger.info(f"Backends of this torch: {', '.join(list_backends())}")


def judge(results: Results) -> Verdict:
    facts = [result["facts"] for result in results]
    size = len(results)
    hosts = sorted({fact["hostname"] for fact in facts})
    methods = sorted(results[0]["init_methods"])
    joined = [list(result["init_methods"].values()) for result in results]
    backends = results[0]["backends"]
    ranks = [f"rank {rank}" for rank in range(size)]
    displayed = []
    for lines in zip(*(result["display"].splitlines() for result in results), strict=True):
        displayed.append((lines[0].partition(": ")[0], *(line.partition(": ")[2] for line in lines)))
    return Verdict(
        f"{plural(size, 'rank')} on {plural(len(hosts), 'host')} ({', '.join(hosts)}), with backend"
        f" {facts[0]['backend']}; {', '.join(methods)} all led to the same world; this torch has {', '.join(backends)}",
        {"ranks": size, "hosts": hosts, "backends": backends, "init_methods": methods, "facts": facts},
        (
            always("every rank knows thirteen facts", all(len(fact) == 13 for fact in facts)),
            always("the ranks are 0 to n-1, each once", [fact["global_rank"] for fact in facts] == list(range(size))),
            always(
                "every rank is a separate process",
                len({(fact["hostname"], fact["process_id"]) for fact in facts}) == size,
            ),
            always(
                "env://, tcp:// and file:// lead to the same world",
                joined == [[[rank, size]] * len(methods) for rank in range(size)],
            ),
        ),
        (
            table("Thirteen facts of every rank", ("fact", *ranks), ((n, *(f[n] for f in facts)) for n in facts[0])),
            table("The same as JSON", ("rank", "what it logs"), enumerate(map(json.dumps, facts))),
            table("What rollcall.display prints", ("line", *ranks), displayed),
        ),
    )


def draw(results: Results, figure: Figure) -> None:
    facts = [result["facts"] for result in results]
    first, nodes = facts[0], len({fact["node_rank"] for fact in facts})
    most = max(fact["local_world_size"] for fact in facts)
    figure.set_size_inches(max(6, 2.1 * most + 0.6), 0.6 + 2.0 * nodes)
    axes = figure.add_subplot()
    for fact in facts:
        x, y, colour = 2 * fact["local_rank"], -2.1 * fact["node_rank"], colour_of(fact["global_rank"])
        if fact["local_rank"] == 0:
            add_box(axes, -0.1, y - 0.25, 2 * most + 0.1, 1.65)
            axes.text(0, y + 1.18, f"host {fact['hostname']}  ·  node_rank {fact['node_rank']}", weight="bold")
        add_box(axes, x + 0.1, y, 1.7, 0.9, edge=colour)
        rank = f"rank {fact['global_rank']}"
        axes.text(x + 0.95, y + 0.62, rank, ha="center", size=13, weight="bold", color=colour)
        axes.text(x + 0.95, y + 0.32, f"local_rank {fact['local_rank']}", ha="center", size=9)
        axes.text(x + 0.95, y + 0.08, f"process {fact['process_id']}", ha="center", size=9)
    store = f"{first['master_addr']}:{first['master_port']}"
    title = f"{len(facts)} ranks with their store at {store}, backend {first['backend']}"
    axes.set(title=title, xlim=(-0.3, 2 * most + 0.2), ylim=(-2.1 * (nodes - 1) - 0.45, 1.6))
    axes.axis("off")


EXPERIMENT = Experiment(
    measure, judge, draw, trials=1, least_ranks=1, once=once, code_on_page=(measure, list_backends, try_init_methods)
)
