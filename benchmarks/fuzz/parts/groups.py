"""Groups, meshes, and threads with a group of their own."""

from benchmarks.fuzz.parts import slots
from benchmarks.fuzz.script import Slot, Writer


def pair(w: Writer) -> None:
    """A group of some ranks, made by all, used by its members."""
    count = w.rng.randint(2, w.world_size)
    members = tuple(sorted(w.rng.sample(w.everyone, count)))
    others = tuple(sorted(w.rng.sample(w.everyone, 2 if count != 2 or w.world_size < 3 else 3)))
    group, value = w.name("evaluators", "readers", "editors"), w.name("share", "score")
    known = {"members": Slot(str(list(members)), {"group-incomplete": str(list(others))} if others != members else {})}
    w.call(f"{group} = dist.new_group(<members>)", "group", known, instead={"group-incomplete": f"{group} = None"})
    w.line(f"{value} = torch.full(({w.size()},), rank + 1.0)")
    with w.block(f"if rank in {list(members)}:", ranks=members), w.loop(w.name("pass_number"), w.size(1, 4)):
        w.call(f"dist.all_reduce(<tensor>, group={group})", slots={"tensor": slots.tensor(value, w)}, groups=(members,))
        inner = slots.root(w, members)
        w.call(f"dist.broadcast({value}, src=<root>, group={group})", slots={"root": inner}, groups=(members,))
    w.line(f"results.append({value}.sum().item())")


def halves(w: Writer) -> None:
    """Subgroups of one size: a sum in each, then in the world."""
    size = w.rng.choice([n for n in range(2, w.world_size) if w.world_size % n == 0])
    parts = tuple(tuple(range(first, first + size)) for first in range(0, w.world_size, size))
    group, value = w.name("node", "local_group"), w.name("gradient", "shard")
    w.call(f"{group}, _ = dist.new_subgroups(group_size={size})", "group")
    with w.loop(w.name("step"), w.size(2, 5)):
        w.line(f"{value} = torch.full(({w.size()},), rank + 1.0)")
        known = {"tensor": slots.tensor(value, w)}
        w.call(f"dist.all_reduce(<tensor>, group={group})", slots=known, groups=parts)
        w.call(f"dist.all_reduce({value})")
    w.line(f"results.append({value}.sum().item())")


def mesh(w: Writer) -> None:
    """Rows and columns of a mesh."""
    rows = w.rng.choice([n for n in range(2, w.world_size) if w.world_size % n == 0])
    columns = w.world_size // rows
    grid = w.name("mesh", "grid")
    flat = w.name("activations", "block")
    by_row = tuple(tuple(range(r * columns, (r + 1) * columns)) for r in range(rows))
    by_column = tuple(tuple(range(c, w.world_size, columns)) for c in range(columns))
    w.call(f'{grid} = init_device_mesh("cpu", ({rows}, {columns}), mesh_dim_names=("dp", "tp"))', "group")
    w.line(f"{flat} = torch.full(({w.size()},), rank + 1.0)")
    with w.loop(w.name("layer"), w.size(1, 4)):
        known = {"tensor": slots.tensor(flat, w), "op": slots.reduce_op(w)}
        w.call(f'dist.all_reduce(<tensor>, op=<op>, group={grid}.get_group("tp"))', slots=known, groups=by_row)
        w.call(f'dist.all_reduce({flat}, group={grid}["dp"].get_group())', groups=by_column)
        w.line(f"{flat} = {flat} / {flat}.max()")
    w.line(f"results.append({flat}.sum().item())")


def two_channels(w: Writer) -> None:
    """Two groups of all ranks: one for gradients, one for statistics."""
    one, other = w.name("gradients", "weights_channel"), w.name("statistics", "metrics_channel")
    value = w.name("payload")
    w.call(f"{one} = dist.new_group()", "group")
    w.call(f"{other} = dist.new_group()", "group")
    w.line(f"{value} = torch.full(({w.size()},), rank + 1.0)")
    with w.loop(w.name("step"), w.size(2, 5)):
        w.call(f"dist.all_reduce({value}, group={one})", name=one)
        w.call(f"dist.all_reduce({value}, op=dist.ReduceOp.MAX, group={other})", name=other)
    w.line(f"results.append({value}.sum().item())")


def checkpoint_thread(w: Writer) -> None:
    """A thread writes checkpoints and agrees with the other ranks on a group of its own."""
    group, save, saver = w.name("save_group"), w.name("save_checkpoint", "write_state"), w.name("saver", "writer")
    jobs, value = w.name("jobs"), w.name("state_sum")
    w.call(f"{group} = dist.new_group()", "group")
    w.line(f"{jobs} = queue.Queue()")
    with w.helper(f"def {save}(jobs, group, saved):"), w.block("while (state := jobs.get()) is not None:"):
        w.line("done = torch.tensor([state.sum().item()])")
        w.line("dist.all_reduce(done, group=group)")
        w.line("saved.append(done.item())")
    w.line("saved = []")
    w.line(f"{saver} = threading.Thread(target={save}, args=({jobs}, {group}, saved))")
    w.line(f"{saver}.start()")
    step = w.name("step")
    w.line(f"{value} = torch.full(({w.size()},), rank + 1.0)")
    with w.loop(step, w.size(2, 6)):
        w.call("dist.all_reduce(<tensor>)", slots={"tensor": slots.tensor(value, w)})
        w.line(f"{value} = {value} / world")
        with w.block(f"if {step} % 2 == 0:"):
            w.line(f"{jobs}.put({value}.clone())")
    w.line(f"{jobs}.put(None)")
    w.line(f"{saver}.join()")
    w.line("results.append(saved)")


PARTS = (pair, halves, mesh, two_channels, checkpoint_thread)
NEEDS_FACTORS = (halves, mesh)
