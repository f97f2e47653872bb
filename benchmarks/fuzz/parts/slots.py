"""Places in calls that several parts have in common, with what mutations write there."""

from benchmarks.fuzz.script import Slot, Writer

_REDUCE_OPS = ("SUM", "MAX", "MIN")


def tensor(name: str, w: Writer) -> Slot:
    """A float tensor of one dimension. The int32 has as many bytes: gloo adds garbage without an error."""
    other = w.rng.choice((f"{name}.double()", f"{name}.to(torch.int32)"))
    return Slot(name, {"mismatched-shape": f"{name}[:-1].clone()", "mismatched-dtype": other})


def reduce_op(w: Writer) -> Slot:
    right, wrong = w.rng.sample(_REDUCE_OPS, 2)
    return Slot(f"dist.ReduceOp.{right}", {"mismatched-reduce-op": f"dist.ReduceOp.{wrong}"})


def root(w: Writer, ranks: tuple[int, ...] | None = None) -> Slot:
    right, wrong = w.rng.sample(ranks or w.everyone, 2)
    return Slot(str(right), {"mismatched-root": str(wrong)})


def sent(name: str, w: Writer) -> Slot:
    """A float tensor that is sent or received."""
    return Slot(name, {"p2p-size": f"torch.cat([{name}, {name}])", "p2p-dtype": f"{name}.to(torch.int32)"})
