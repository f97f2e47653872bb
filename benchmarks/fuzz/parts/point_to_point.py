"""Sends and receives."""

from benchmarks.fuzz.parts import slots
from benchmarks.fuzz.script import Slot, Writer


def _right(w: Writer) -> dict[int, int]:
    return {rank: (rank + 1) % w.world_size for rank in w.everyone}


def _left(w: Writer) -> dict[int, int]:
    return {rank: (rank - 1) % w.world_size for rank in w.everyone}


def ring(w: Writer) -> None:
    """Each rank hands its block to the right and takes one from the left."""
    block, other, work = w.name("block", "keys"), w.name("incoming"), w.name("request")
    tag = w.rng.choice((0, 0, 7))
    tagged = f", tag={tag}" if tag else ""
    w.line(f"{block} = torch.full(({w.size()},), float(rank))")
    with w.loop(w.name("hop", "turn"), w.size(2, 6)):
        w.line(f"{other} = torch.empty_like({block})")
        known = {"tensor": slots.sent(block, w), "peer": _peer("(rank + 1) % world", "(rank + 2) % world", w)}
        known["tag"] = Slot(tagged, {"tag-mismatch": ", tag=5"})
        w.call(f"{work} = dist.isend(<tensor>, <peer><tag>)", "p2p", known, partners=_right(w), name=work)
        known = {"tensor": slots.sent(other, w), "peer": _peer("(rank - 1) % world", "(rank - 2) % world", w)}
        known["tag"] = Slot(tagged, {"tag-mismatch": ", tag=6"})
        w.call("dist.recv(<tensor>, <peer><tag>)", "p2p", known, partners=_left(w))
        w.line(f"{work}.wait()")
        w.line(f"{block} = {other} + 1")
    w.line(f"results.append({block}.sum().item())")


def _peer(right: str, wrong: str, w: Writer) -> Slot:
    """In a world of two or three, the wrong peer would be the rank itself, or the one on the other side."""
    return Slot(right, {"wrong-peer": wrong} if w.world_size > 3 else {})


def batched_ring(w: Writer) -> None:
    """A ring by batch_isend_irecv, as in ring attention."""
    shift, size = w.name("shift", "pass_on"), w.size()
    with w.helper(f"def {shift}(block):"):
        w.line("incoming = torch.empty_like(block)")
        w.line("ops = [")
        w.line("    dist.P2POp(dist.isend, block, (rank + 1) % world),")
        w.line("    dist.P2POp(dist.irecv, incoming, (rank - 1) % world),")
        w.line("]")
        w.call("works = dist.batch_isend_irecv(ops)", "framework")
        with w.block("for work in works:"):
            w.line("work.wait()")
        w.line("return incoming")
    block = w.name("queries", "chunk")
    w.line(f"{block} = torch.full(({size},), float(rank))")
    with w.loop(w.name("hop"), w.size(2, 5)):
        w.line(f"{block} = {shift}({block}) * 2")
    w.line(f"results.append({block}.sum().item())")


def stages(w: Writer) -> None:
    """A pipeline by hand: micro-batches go from stage to stage."""
    size, hidden, batch = w.size(), w.name("hidden"), w.name("micro_batch")
    last = w.world_size - 1
    w.line(f"{hidden} = torch.zeros({size})")
    with w.loop(batch, w.size(2, 6)):
        with w.block("if rank > 0:", ranks=w.everyone[1:]):
            known = {"tensor": slots.sent(hidden, w), "tag": Slot(batch, {"tag-mismatch": f"{batch} + 50"})}
            w.call("dist.recv(<tensor>, src=rank - 1, tag=<tag>)", "p2p", known, partners=_left(w))
        w.line(f"{hidden} = torch.tanh({hidden} + {batch})")
        with w.block("if rank < world - 1:", ranks=w.everyone[:last]):
            known = {"tensor": slots.sent(hidden, w), "tag": Slot(batch, {"tag-mismatch": f"{batch} + 60"})}
            w.call("dist.send(<tensor>, dst=rank + 1, tag=<tag>)", "p2p", known, partners=_right(w))
    w.line(f"results.append({hidden}.sum().item())")


def halo(w: Writer) -> None:
    """Neighbours exchange their edges: even ranks send first, odd ranks receive first."""
    edge, ghost = w.name("edge"), w.name("ghost")
    count = w.world_size // 2 * 2
    evens, odds = tuple(range(0, count, 2)), tuple(range(1, count, 2))
    to = {rank: rank ^ 1 for rank in range(count)}
    w.line(f"{edge} = torch.full(({w.size()},), rank + 1.0)")
    w.line(f"{ghost} = torch.zeros_like({edge})")
    with w.loop(w.name("iteration"), w.size(2, 5)):
        with w.block(f"if rank in {evens}:", ranks=evens):
            known = {"tensor": slots.sent(edge, w)}
            w.call("dist.send(<tensor>, rank + 1)", "p2p", known, partners=to)
            w.call(f"dist.recv({ghost}, rank + 1)", "p2p", partners=to)
        with w.block(f"elif rank in {odds}:", ranks=odds):
            swapped = {"p2p-deadlock": f"dist.send({edge}, rank - 1)"}
            w.call(f"dist.recv({ghost}, rank - 1)", "p2p", partners=to, instead=swapped)
            w.call(f"dist.send({edge}, rank - 1)", "p2p", partners=to)
        w.line(f"{edge} = ({edge} + {ghost}) / 2")
    w.line(f"results.append({edge}.sum().item())")


def server(w: Writer) -> None:
    """Rank 0 takes gradients from the others, in turn or from whoever comes first, and sends weights back."""
    weight, grad = w.name("weight"), w.name("delta")
    any_order = w.rng.random() < 0.4
    others = w.everyone[1:]
    take, give = f"take {grad}", f"give {weight}"
    w.line(f"{weight}, {grad} = torch.ones(4), torch.zeros(4)")
    with w.loop(w.name("step"), w.size(2, 4)):
        with w.block("if rank == 0:", ranks=(0,)):
            with w.block("for worker in range(1, world):"):
                if any_order:
                    w.call(f"source = dist.recv({grad}, tag=1)", "server", name=take)
                else:
                    w.line("source = worker")
                    w.call(f"dist.recv({grad}, source, tag=1)", "server", name=take)
                w.line(f"{weight} -= 0.1 * {grad}")
            with w.block("for worker in range(1, world):"):
                w.call(f"dist.send({weight}, worker, tag=2)", "server", name=give)
        with w.block("else:", ranks=others):
            known = {"tensor": slots.sent(f"({weight} * rank)", w), "tag": Slot("1", {"tag-mismatch": "3"})}
            to = dict.fromkeys(others, 0)
            w.call("dist.send(<tensor>, 0, tag=<tag>)", "p2p", known, partners=to, related=(take,))
            known = {"tensor": slots.sent(weight, w), "tag": Slot("2", {"tag-mismatch": "4"})}
            w.call("dist.recv(<tensor>, 0, tag=<tag>)", "p2p", known, partners=to, related=(give,))
    w.line(f"results.append(round({weight}.sum().item(), 4))")


PARTS = (ring, batched_ring, stages, halo, server)
