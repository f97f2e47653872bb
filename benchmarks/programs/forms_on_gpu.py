"""Which forms of an op are recorded on a GPU: PYTHONPATH=src python3 benchmarks/programs/forms_on_gpu.py

Needs torch and a GPU, and nothing else. One nccl rank calls every form that only nccl has: batches, coalesced ops,
works that are polled or synchronized, split groups, meshes, symmetric memory. Prints of each form what was recorded
(op, whether it is async, was waited for, has completed), or the error that torch raised; and at last whether every
recorded op has completed.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

from rollcall.explain.loading.load import load
from rollcall.explain.loading.table import Op
from rollcall.record import recorder
from rollcall.record.hooks import patching
from rollcall.record.ring_format import WAITED

ELEMENTS = 1024


def batch() -> None:
    got = torch.empty(ELEMENTS, device="cuda")
    both = [dist.P2POp(dist.isend, tensor(), 0), dist.P2POp(dist.irecv, got, 0)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    assert got.eq(1).all()


def coalesced_fast() -> None:
    with _coalescing_manager():
        dist.all_reduce(tensor())
        dist.all_reduce(tensor())


def coalesced_by_backend() -> None:
    with _coalescing_manager(device=torch.device("cuda", 0)):
        dist.broadcast(tensor(), 0)
        dist.broadcast(tensor(), 0)


def coalesced_async() -> None:
    with _coalescing_manager(device=torch.device("cuda", 0), async_ops=True) as manager:
        dist.broadcast(tensor(), 0, async_op=True)
        dist.broadcast(tensor(), 0, async_op=True)
    manager.wait()


def synchronized() -> None:
    dist.all_reduce(tensor(), async_op=True).synchronize()


def stream_blocked() -> None:
    dist.all_reduce(tensor(), async_op=True).block_current_stream()


def polled() -> None:
    work = dist.all_reduce(tensor(), async_op=True)
    while not work.is_completed():
        pass


def result() -> None:
    work = dist.all_reduce(tensor(), async_op=True)
    work.result()
    work.wait()


def future() -> None:
    dist.all_reduce(tensor(), async_op=True).get_future().wait()


def all_to_all() -> None:
    dist.all_to_all([tensor()], [tensor()])
    dist.all_to_all_single(tensor(), tensor(), [ELEMENTS], [ELEMENTS])


def split() -> None:
    made = dist.split_group(split_ranks=[[0]])
    dist.all_reduce(tensor(), group=made)


def mesh() -> None:
    made = init_device_mesh("cuda", (1, 1), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(tensor(), group=made["tp"].get_group())
    dist.all_reduce(tensor(), group=made["dp", "tp"]._flatten("all").get_group())


def thread() -> None:
    """It has used no CUDA before."""
    other = threading.Thread(target=thread_body, args=(tensor(),))
    other.start()
    other.join()


def thread_body(given: torch.Tensor) -> None:
    dist.all_reduce(given)


def symmetric_memory() -> None:
    import torch.distributed._symmetric_memory as memory  # here: it may not be there

    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    shared = memory.empty(ELEMENTS, device=torch.device("cuda", 0), dtype=torch.float32).fill_(1)
    memory.rendezvous(shared, name)
    torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", name)


FORMS: tuple[Callable[[], None], ...] = (
    batch, coalesced_fast, coalesced_by_backend, coalesced_async, synchronized, stream_blocked, polled, result, future,
    all_to_all, split, mesh, thread, symmetric_memory,
)  # fmt: skip


def tensor() -> torch.Tensor:
    return torch.ones(ELEMENTS, device="cuda")


def main() -> int:
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: nothing to record")
    with tempfile.TemporaryDirectory() as folder:
        recording = recorder.begin(Path(folder), rank=0, world_size=1, attempt=0)
        device = torch.device("cuda", 0)
        dist.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=0, world_size=1, device_id=device)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {type(recording).__name__}")
        errors = {form.__name__: _error_of(form) for form in FORMS}
        torch.cuda.synchronize()
        time.sleep(0.3)  # the recorder's thread asks for events ten times in a second
        recording.note_end(0, None)
        ops = load(Path(folder)).ranks[0].ops
        is_whole = [_print(form.__name__, errors[form.__name__], _ops_in(form, list(ops))) for form in FORMS]
        dist.destroy_process_group()
    print(f"failures of recording: {dict(patching.failures) or 'none'}")
    print("every recorded op has completed" if all(is_whole) else "NOT every recorded op has completed")
    return 0 if all(is_whole) and not patching.failures else 1


def _error_of(form: Callable[[], None]) -> str:
    try:
        form()
    except Exception as error:  # what this torch cannot do
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return ""


def _ops_in(form: Callable[[], None], ops: list[Op]) -> list[Op]:
    return [op for op in ops if op.site and any(site.function.startswith(form.__name__) for site in op.site.chain)]


def _print(name: str, error: str, ops: list[Op]) -> bool:
    """Whether all that was recorded has completed, or failed because torch raised."""
    words = [
        f"{op.op}{' async' * op.is_async}{' waited' * bool(op.flags & WAITED)}"
        f"{' completed' if op.completed_ns else ' failed' if op.is_failed else ' OPEN'}"
        for op in ops
    ]
    print(f"{name:20s} {', '.join(words) or 'NOTHING RECORDED'}{f'  [{error}]' if error else ''}", flush=True)
    return bool(words) and all(op.completed_ns or (op.is_failed and error) for op in ops)


if __name__ == "__main__":
    os.environ.update(RANK="0", WORLD_SIZE="1")
    sys.exit(main())
