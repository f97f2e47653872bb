"""Every form of an op is recorded, and computes the same as without recording."""

from ast import literal_eval
from itertools import zip_longest
from pathlib import Path

from rollcall.explain.loading.load import load
from rollcall.explain.verdict import explain
from tests.blame import blamed
from tests.ranks import Ended
from tests.record.recorded import run_recorded
from tests.rollcall_command import Runner

# Each function is a form: what it returns is printed, or the error that it raises.
PROGRAM = """\
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed._symmetric_memory as symmetric_memory
from torch.distributed import new_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

dist.init_process_group("gloo")
rank, size, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
after, before, t = (rank + 1) % size, (rank - 1) % size, torch.arange(8.0) + rank
counts = [j + 1 for j in range(size)]
ops = torch.ops._c10d_functional

def started():
    t.copy_(torch.arange(8.0) + rank)
    return dist.all_reduce(t, async_op=True)

def synchronized():
    work = started()
    work.synchronize()
    work.wait()
    return t
def polled():
    work = started()
    while not work.is_completed():
        pass
    return t
def result():
    work = started()
    while not work.is_completed():
        pass
    return work.result()
def future():
    return started().get_future().wait()
def then():
    return started().get_future().then(lambda done: done.value()).wait()
def batch():
    got = torch.zeros(8)
    both = [dist.P2POp(dist.isend, t, after), dist.P2POp(dist.irecv, got, before)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return got
def coalesced():
    one, two = t.clone(), t.clone()
    with _coalescing_manager():
        dist.all_reduce(one)
        dist.all_reduce(two)
    return one, two
def coalesced_async():
    one, two, got = t.clone(), t.clone(), torch.empty(8 * size)
    with _coalescing_manager(async_ops=True) as reducing:
        dist.all_reduce(one)
        dist.all_reduce(two)
    with _coalescing_manager(async_ops=True) as gathering:
        dist.all_gather_into_tensor(got, t)
    reducing.wait()
    gathering.wait()
    return one, two, got
def coalesced_by_backend():
    with _coalescing_manager(device=torch.device("cpu")):
        pass
def list_to_all():
    got = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(got, list(t.chunk(size)))
    return got
def single_to_all():
    got = torch.zeros(8)
    dist.all_to_all_single(got, t)
    return got
def splits_to_all():
    got = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(got, torch.arange(float(sum(counts))), [rank + 1] * size, counts, async_op=True).wait()
    return got
def functional_to_all():
    return functional.all_to_all_single(torch.arange(float(sum(counts))), [rank + 1] * size, counts, world) + 0
def functional_out():
    return ops.wait_tensor(ops.all_gather_into_tensor_out(t, size, world.group_name, out=torch.empty(8 * size)))
def functional_pair():
    got = torch.zeros(8)
    for is_send in (True, False) if rank % 2 else (False, True):
        step, tensor, peer = (ops.isend, t.clone(), after) if is_send else (ops.irecv, got, before)
        ops.wait_tensor(step(tensor, peer, 3, world.group_name))
    return got
def functional_batch():
    words = ["isend", "irecv"], [after, before], [0, 0], [t.clone(), torch.zeros(8)], world.group_name
    return [ops.wait_tensor(each) for each in ops.batch_p2p_ops(*words)]
def from_any():
    if rank:
        return dist.send(t, 0, tag=5)
    return torch.tensor(sorted(dist.recv(torch.zeros(8), tag=5) for _ in range(size - 1)))
def mesh():
    made = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for part in (made["dp"], made["tp"], made["dp", "tp"]._flatten("all")):
        dist.all_reduce(t, group=part.get_group())
    return t
def by_name():
    new_group([0, 1])
    dist.barrier()  # or rank 0 might end while rank 1 still connects to it
def split():
    dist.split_group(split_ranks=[[0, 1], [2, 3]])
def symmetric():
    torch.ops.symm_mem.one_shot_all_reduce(t, "sum", world.group_name)
def rendezvous():
    symmetric_memory.rendezvous(t, world)

for form in (FORMS):
    try:
        found = form()
        found = found if isinstance(found, (list, tuple)) else [found]
        found = [each.tolist() for each in found if each is not None]
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        found = [type(error).__name__, str(error).splitlines()[0]]
    print(form.__name__, found)
"""
REDUCED, PAIR, EXCHANGE = ["all_reduce"], ["send", "recv"], ["all_to_all"]
# The forms, and what is recorded of each. gloo does not coalesce by itself or have symmetric memory, and splits groups
# from torch 2.15 on: what it raises is the same with recording.
FORMS = {
    "synchronized": REDUCED,
    "polled": REDUCED,
    "result": REDUCED,
    "future": REDUCED,
    "then": REDUCED,
    "batch": PAIR,
    "coalesced": REDUCED,
    "coalesced_async": ["all_reduce", "all_gather"],
    "list_to_all": EXCHANGE,
    "single_to_all": EXCHANGE,
    "splits_to_all": EXCHANGE,
    "functional_to_all": EXCHANGE,
    "functional_out": ["all_gather"],
    "functional_pair": PAIR,
    "functional_batch": PAIR,
    "from_any": ["recv"] * 3,
    "mesh": ["new_group"] * 4 + REDUCED * 3,
    "by_name": ["new_group", "barrier"],
    "split": ["new_group"],
    "symmetric": REDUCED,
    "rendezvous": ["barrier"],
    "coalesced_by_backend": [],  # the last one: torch takes the group for one that coalesces, after its error
}
SCRIPT = PROGRAM.replace("FORMS", ", ".join(FORMS))


def _function_of(line: int) -> str:
    """The form that a line of the program is in."""
    heads = [text for text in SCRIPT.splitlines()[:line] if text.startswith("def ")]
    return heads[-1].removeprefix("def ").partition("(")[0] if heads else ""


def _errors(printed: str) -> dict[str, str]:
    """By form that raised: the name of its error."""
    found = {form: literal_eval(values) for form, _, values in (line.partition(" ") for line in printed.splitlines())}
    return {form: values[0] for form, values in found.items() if values and isinstance(values[0], str)}


def _differences(plain: list[Ended], recorded: list[Ended]) -> list[tuple[int, str, str]]:
    """Rank, and what it printed of a form without and with recording, where that is not the same."""
    return [
        (rank, *lines)
        for rank, (one, other) in enumerate(zip(plain, recorded, strict=True))
        for lines in zip_longest(one.out.splitlines(), other.out.splitlines(), fillvalue="")
        if lines[0] != lines[1]
    ]


def test_every_form_is_recorded_and_computes_the_same(runner: Runner) -> None:
    """Also those that are not waited for but polled, that begin in a batch, or that raise here. Of a form that this
    torch does not have, there is nothing to record."""
    plain, recorded = (run_recorded(runner, SCRIPT, 4, is_recorded) for is_recorded in (False, True))
    assert _differences(plain, recorded) == []
    errors = _errors(plain[0].out)
    forms_here = {form: [] if errors.get(form) == "AttributeError" else ops for form, ops in FORMS.items()}
    found: dict[str, list[str]] = {form: [] for form in FORMS}
    for op in load(Path(runner.latest()).resolve()).ranks[0].ops:
        forms = [_function_of(site.line) for site in op.site.chain] if op.site else []
        form = next((form for form in forms if form in FORMS), "")
        if form:
            found[form].append(op.op)
            assert op.is_failed if form in errors else op.completed_ns >= op.entered_ns > 0, form
    found["functional_pair"].sort(reverse=True)
    assert found == forms_here
    assert blamed(explain(runner.latest().resolve())) == []
