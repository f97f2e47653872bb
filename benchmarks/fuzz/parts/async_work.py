"""Handles of async ops: kept in lists, polled, read through futures, overlapped with work."""

from benchmarks.fuzz.parts import slots
from benchmarks.fuzz.script import Writer


def bucketed(w: Writer) -> None:
    """Gradients in buckets: all issued, then all waited for."""
    works, grads = w.name("works", "pending"), w.name("grads", "buckets")
    w.line(f"{grads} = [torch.full(({w.size()},), float(rank + i)) for i in range({w.size(2, 5)})]")
    w.line(f"{works} = []")
    with w.block(f"for grad in {grads}:"):
        w.call(f"{works}.append(dist.all_reduce(grad, async_op=True))", is_async=True, name=works)
    with w.block(f"for work in {works}:"):
        w.call("work.wait()", sort="wait", related=(works,))
    w.line(f"results.append(sum(grad.sum().item() for grad in {grads}))")


def overlapped(w: Writer) -> None:
    """Two ops under way while something else is computed."""
    size, first, second = w.size(), w.name("head", "first"), w.name("tail", "second")
    w.line(f"{first}, {second} = torch.full(({size},), rank + 1.0), torch.full(({size + 2},), rank + 2.0)")
    w.call(f"work_{first} = dist.all_reduce({first}, async_op=True)", is_async=True, name=first)
    w.call(f"work_{second} = dist.all_reduce({second}, async_op=True)", is_async=True, name=second)
    w.line(f"{w.name('local')} = sum(i * i for i in range({w.size(100, 3000)}))")
    w.call(f"work_{first}.wait()", sort="wait", related=(first,), buffer=first)
    w.call(f"work_{second}.wait()", sort="wait", related=(second,), buffer=second)
    w.line(f"results.append(({first}.sum() + {second}.sum()).item())")


def polled(w: Writer) -> None:
    """is_completed() in a loop, or the future of the handle."""
    value, work = w.name("votes", "signal_sum"), w.name("work", "handle")
    w.line(f"{value} = torch.full(({w.size()},), float(rank))")
    known = {"tensor": slots.tensor(value, w)}
    w.call(f"{work} = dist.all_reduce(<tensor>, async_op=True)", slots=known, is_async=True)
    if w.rng.random() < 0.5:
        with w.block(f"while not {work}.is_completed():"):
            w.line("time.sleep(0.001)")
    else:
        w.line(f"{work}.get_future().wait()")
    w.line(f"results.append({value}.sum().item())")


def prefetched(w: Writer) -> None:
    """The next batch is broadcast while this one is used."""
    fetch, batch, work, step = w.name("prefetch", "load_next"), w.name("batch"), w.name("work"), w.name("step")
    turns = w.size(2, 6)
    with w.helper(f"def {fetch}(number):"):
        w.line(f"{batch} = torch.full(({w.size()},), float(number * world + rank))")
        w.call(f"return {batch}, dist.broadcast({batch}, src=0, async_op=True)", is_async=True, name=fetch)
    w.line(f"{batch}, {work} = {fetch}(0)")
    with w.loop(step, turns):
        w.call(f"{work}.wait()", sort="wait", related=(fetch,), buffer=batch)
        w.line(f"results.append({batch}.sum().item())")
        w.line(f"{batch}, {work} = {fetch}({step} + 1)")
    w.line(f"{work}.wait()")


PARTS = (bucketed, overlapped, polled, prefetched)
