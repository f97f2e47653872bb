"""Collectives of the whole world, as people use them around a training loop."""

from benchmarks.fuzz.parts import slots
from benchmarks.fuzz.script import Slot, Writer


def metrics(w: Writer) -> None:
    """Sums of losses and counts, in a helper function or in place."""
    size, total = w.size(), w.name("loss", "totals", "correct")
    reduce = w.name("average", "reduce_metrics", "sum_over_ranks")
    known = {"tensor": slots.tensor("values", w), "op": slots.reduce_op(w)}
    with w.helper(f"def {reduce}(values):"):
        w.call(
            "dist.all_reduce(<tensor>, op=<op>)", slots=known, instead={"mismatched-op": "dist.reduce(values, dst=0)"}
        )
        w.line("return values / world")
    with w.loop(w.name("step", "batch"), w.size(2, 8)):
        w.line(f"{total} = torch.arange({size}.0) + rank")
        w.line(f"{total} = {reduce}({total})")
    w.line(f"results.append({total}.sum().item())")


def settings(w: Writer) -> None:
    """Rank 0 decides, the others take it over; two tensors one after the other."""
    sizes = w.rng.sample(range(3, 12), 2)
    rate, state = w.name("rates", "schedule"), w.name("weights", "state")
    owner = slots.root(w)
    w.line(f"{rate} = torch.full(({sizes[0]},), float(rank))")
    w.line(f"{state} = torch.full(({sizes[1]},), rank + 1.0)")
    for each in (rate, state):
        known = {"tensor": slots.tensor(each, w), "root": owner}
        w.call(
            "dist.broadcast(<tensor>, src=<root>)", slots=known, instead={"mismatched-op": f"dist.all_reduce({each})"}
        )
    w.line(f"results.append(({rate}.sum() + {state}.sum()).item())")


def gathered(w: Writer) -> None:
    """Predictions of all ranks, as a list or as one tensor."""
    size, mine, parts = w.size(), w.name("scores", "predictions"), w.name("parts", "everyone")
    w.line(f"{mine} = torch.linspace(0, rank + 1, {size})")
    if w.rng.random() < 0.5:
        w.line(f"{parts} = [torch.zeros({size}) for _ in range(world)]")
        other = f"[torch.zeros({size + 2}) for _ in range(world)], torch.zeros({size + 2})"
        known = {"tensors": Slot(f"{parts}, {mine}", {"mismatched-shape": other})}
        w.call("dist.all_gather(<tensors>)", slots=known, instead={"mismatched-op": f"dist.all_reduce({mine})"})
        w.line(f"results.append(torch.cat({parts}).sum().item())")
    else:
        w.line(f"{parts} = torch.zeros(world * {size})")
        other = f"torch.zeros(world * {size + 1}), torch.zeros({size + 1})"
        known = {"tensors": Slot(f"{parts}, {mine}", {"mismatched-shape": other})}
        w.call("dist.all_gather_into_tensor(<tensors>)", slots=known)
        w.line(f"results.append({parts}.sum().item())")


def collected(w: Writer) -> None:
    """To one rank and from it: gather, scatter, reduce."""
    size, rows, part = w.size(), w.name("rows", "report"), w.name("part", "share")
    to = slots.root(w)
    w.line(f"{rows} = [torch.zeros({size}) for _ in range(world)] if rank == {to.right} else None")
    w.line(f"{part} = torch.full(({size},), float(rank))")
    w.call(f"dist.gather({part}, {rows}, dst={to.right})", instead={"mismatched-op": f"dist.all_reduce({part})"})
    known = {"tensor": slots.tensor(part, w), "root": to, "op": slots.reduce_op(w)}
    w.call("dist.reduce(<tensor>, dst=<root>, op=<op>)", slots=known)
    w.call(f"dist.scatter({part}, {rows}, src={to.right})")
    w.line(f"results.append({part}.sum().item())")


def sharded_sum(w: Writer) -> None:
    """reduce_scatter and all_gather, the two halves of an all_reduce."""
    size, grad, shard = w.size(), w.name("grad", "gradient"), w.name("shard", "slice")
    w.line(f"{grad} = torch.arange(world * {size}.0) * (rank + 1)")
    w.line(f"{shard} = torch.zeros({size})")
    other = f"torch.zeros({size + 3}), torch.zeros(world * {size + 3})"
    known = {"tensors": Slot(f"{shard}, {grad}", {"mismatched-shape": other}), "op": slots.reduce_op(w)}
    w.call("dist.reduce_scatter_tensor(<tensors>, op=<op>)", slots=known)
    w.call(f"dist.all_gather_into_tensor({grad}, {shard})")
    w.line(f"results.append({grad}.sum().item())")


def experts(w: Writer) -> None:
    """Tokens to experts and back: counts first, then the tokens with uneven splits."""
    width, send = w.size(2, 6), w.name("send_counts", "to_experts")
    tokens, arrived, back = w.name("tokens"), w.name("arrived"), w.name("back")
    with w.loop(w.name("layer", "step"), w.size(1, 4)):
        w.line(f"{send} = torch.tensor([(rank + other) % 3 + 1 for other in range(world)])")
        w.line(f"take = torch.empty_like({send})")
        w.call(f"dist.all_to_all_single(take, {send})", is_needed=True)
        w.line(f"{tokens} = torch.full((int({send}.sum()), {width}), float(rank))")
        w.line(f"{arrived} = torch.empty(int(take.sum()), {width})")
        wrong = f"torch.cat([{tokens}, {tokens}[:1]]), take.tolist(), [*{send}[:-1].tolist(), int({send}[-1]) + 1]"
        known = {"given": Slot(f"{tokens}, take.tolist(), {send}.tolist()", {"mismatched-splits": wrong})}
        w.call(f"dist.all_to_all_single({arrived}, <given>)", slots=known)
        w.line(f"{back} = torch.empty_like({tokens})")
        w.call(f"dist.all_to_all_single({back}, {arrived} * 2, {send}.tolist(), take.tolist())")
    w.line(f"results.append({back}.sum().item())")


def exchanged_lists(w: Writer) -> None:
    """all_to_all of lists of tensors, and of equal parts of one tensor."""
    size, out, into = w.size(), w.name("outbox"), w.name("inbox")
    w.line(f"{out} = [torch.full(({size},), float(rank * world + other)) for other in range(world)]")
    w.line(f"{into} = [torch.zeros({size}) for _ in range(world)]")
    w.call(f"dist.all_to_all({into}, {out})")
    w.line(f"results.append(torch.stack({into}).sum().item())")


def objects(w: Writer) -> None:
    """Python objects, as in torch's documentation."""
    rows, best, given = w.name("rows", "hosts"), w.name("best", "config"), w.name("orders", "work_items")
    to = w.rng.choice(w.everyone)
    w.line(f"{rows} = [None] * world")
    w.call(f'dist.all_gather_object({rows}, {{"rank": rank, "rows": list(range(rank))}})')
    w.line(f'{best} = ["adam", 0.1] if rank == {to} else [None, None]')
    w.call(f"dist.broadcast_object_list({best}, src={to})")
    choice = w.rng.random()
    if choice < 0.4:
        w.line(f"collected = [None] * world if rank == {to} else None")
        w.call(f'dist.gather_object("x" * (rank + 1), collected, dst={to})')
    elif choice < 0.8:
        w.line(f"{given} = [None]")
        w.line(f"all_{given} = list(range(world)) if rank == {to} else None")
        w.call(f"dist.scatter_object_list({given}, all_{given}, src={to})")
        w.line(f"results.append({given}[0])")
    w.line(f'results.append([len({rows}), {best}, sum(len(row["rows"]) for row in {rows})])')


def early_stop(w: Writer) -> None:
    """All ranks leave a loop together, when one of them asks for it."""
    flag, turn = w.name("stop", "has_converged"), w.name("epoch", "trial")
    turns = w.size(3, 8)
    last = w.rng.randrange(1, turns)
    with w.loop(turn, turns, reached=last + 1):
        w.line(f"{flag} = torch.tensor([float({turn} >= {last} and rank == 0)])")
        w.call(
            f"dist.all_reduce({flag}, op=<op>)",
            slots={"op": Slot("dist.ReduceOp.MAX", {"mismatched-reduce-op": "dist.ReduceOp.MIN"})},
        )
        with w.block(f"if {flag}.item() > 0:"):
            w.line("break")
    w.line(f"results.append({turn})")


def padded(w: Writer) -> None:
    """Tensors of different lengths: the lengths first, then all padded to the longest."""
    length, rows, parts = w.name("length"), w.name("texts", "boxes"), w.name("padded_parts")
    w.line(f"{rows} = torch.ones(rank + {w.size(1, 4)})")
    w.line(f"{length} = torch.tensor([len({rows})])")
    w.call(f"dist.all_reduce({length}, op=dist.ReduceOp.MAX)")
    w.line(f"{rows} = nn.functional.pad({rows}, (0, int({length}) - len({rows})))")
    w.line(f"{parts} = [torch.zeros(int({length})) for _ in range(world)]")
    w.call(f"dist.all_gather({parts}, {rows})")
    w.line(f"results.append(torch.stack({parts}).sum().item())")


def first_come(w: Writer) -> None:
    """Rank 0 prepares a file while the others wait in a barrier."""
    answer = w.name("vocabulary", "cache")
    with w.block("if rank != 0:", ranks=w.everyone[1:]):
        w.line("dist.barrier()")
    w.line(f"{answer} = sum(range({w.size(100, 900)}))")
    with w.block("if rank == 0:", ranks=(0,)):
        w.line("dist.barrier()")
    w.call("dist.barrier()", instead={"mismatched-op": "dist.all_reduce(torch.ones(2))"})
    w.line(f"results.append({answer})")


def functional(w: Writer) -> None:
    """Functional collectives, and those with gradients."""
    size, value, rows = w.size(), w.name("features", "logits"), w.name("joined")
    w.line(f"{value} = torch.arange({size}.0) + rank")
    # Integers have no gradients: the rank would fail in the next line.
    other = {"mismatched-shape": f"{value}[:-1].clone()", "mismatched-dtype": f"{value}.double()"}
    known = {"tensor": Slot(value, other), "op": Slot('"sum"', {"mismatched-reduce-op": '"max"'})}
    w.call(f"{value} = funcol.all_reduce(<tensor>, <op>, dist.group.WORLD)", slots=known)
    w.line(f"{value} = {value}.clone().requires_grad_()")
    w.call(f"{rows} = torch.cat(distnn.all_gather({value}))")
    w.call(f"({rows}.sum() * (rank + 1)).backward()", sort="framework", is_needed=True)
    w.line(f"results.append({value}.grad.sum().item())")


def monitored(w: Writer) -> None:
    """A barrier that says who is late."""
    w.call("dist.monitored_barrier(timeout=timedelta(seconds=20))")
    w.line("results.append(rank)")


def moments(w: Writer) -> None:
    """Mean and variance: two sums one after the other in a helper."""
    normalize, size = w.name("normalize", "standardize"), w.size()
    with w.helper(f"def {normalize}(x):"):
        w.line("mean, square = x.sum().reshape(1), (x * x).sum().reshape(1)")
        w.call("dist.all_reduce(mean)")
        w.call("dist.all_reduce(square)")
        w.line("count = torch.tensor([x.numel(), world])")
        w.call("dist.all_reduce(count)")
        w.line("return (x - mean / count[0]) / (square / count[0] + 1).sqrt()")
    w.line(f"results.append({normalize}(torch.arange({size}.0) * rank).sum().item())")


PARTS = (
    metrics,
    settings,
    gathered,
    collected,
    sharded_sum,
    experts,
    exchanged_lists,
    objects,
    early_stop,
    padded,
    first_come,
    functional,
    monitored,
    moments,
)
