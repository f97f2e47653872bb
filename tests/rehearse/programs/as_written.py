"""What correct programs do beside their training. Each of it once failed in a rehearsal, though not on a GPU."""

import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: F401  (it compiles functions with torch.jit)
from torch.distributed.tensor import DTensor, Partial
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.parallel import DistributedDataParallel

world = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cuda", (world,))  # makes the process group
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
assert torch.backends.cudnn.version() > 90000
assert torch.accelerator.current_device_index() == torch.cuda.current_device()

loss = torch.randn((), device="cuda")
print(f"{loss:.3f}")
assert torch.isfinite(loss)
assert not loss.isnan().any()
assert f"{torch.tensor(1.5).cuda():.1f}" == "1.5"

try:
    torch.ones(2, device="cuda").numpy()
except TypeError:
    pass
else:
    raise AssertionError("numpy() of a tensor on a GPU")

try:
    torch.nn.Linear(2, 2).cuda()(torch.ones(2, 2, device="cuda", dtype=torch.bfloat16))
except RuntimeError as error:
    mixed = str(error)
assert "must have the same dtype, but got BFloat16 and Float" in mixed

assert torch.ones(2).pin_memory().is_pinned()
with torch.device("cuda"):
    assert torch.arange(3).sum().item() == 3
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(lambda n: torch.ones(n, device="cuda").sum().item(), range(40))) == list(range(40))

whole = DTensor.from_local(torch.full((2,), float(rank), device="cuda"), mesh, [Partial("max")]).full_tensor()
assert whole.tolist() == [world - 1] * 2

model = torch.nn.Linear(4, 4).cuda()
file = io.BytesIO()
torch.save({"weights": model.state_dict(), "step": torch.tensor(3).cuda()}, file)
file.seek(0)
loaded = torch.load(file, map_location="cuda", weights_only=True)
assert loaded["weights"]["weight"].shape == (4, 4)
assert loaded["step"].item() == 3
assert pickle.loads(pickle.dumps(model)).weight.is_cuda
torch.func.functional_call(model, dict(model.named_parameters()), (torch.ones(1, 4, device="cuda"),)).sum().backward()
torch.func.vmap(model)(torch.ones(2, 1, 4, device="cuda"))
query = torch.randn(1, 1, 128, 16, device="cuda")
assert flex_attention(query, query, query).shape == query.shape

ddp = DistributedDataParallel(model)
ddp.module.load_state_dict(loaded["weights"])
lengths = torch.tensor([3, 1, 2])
rows = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(3, 3, 4, device="cuda"), lengths, True, False)
assert rows.batch_sizes.tolist() == [3, 2, 1]
optimizer, scaler = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9), torch.amp.GradScaler("cuda")
with torch.autocast("cuda", torch.float16):
    loss = ddp(rows.data).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)  # not left out, as it is where gradients are infinite
scaler.update()
assert len(optimizer.state) == 2

noted = torch.nn.Linear(2, 2)
noted.weight.no_decay = True
assert noted.cuda().weight.no_decay
noted.weight.data = noted.weight.to("cpu")
assert noted.weight.no_decay
torch.save(noted.state_dict(), "noted.pt")
assert torch.load("noted.pt", mmap=True, map_location="cpu", weights_only=True)["bias"].shape == (2,)
action = torch.distributions.Categorical(logits=torch.randn(4, 2, device="cuda")).sample()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
    torch.ones(2, device="cuda").sum()
dist.monitored_barrier(dist.new_group(backend="gloo"))
dist.TCPStore("192.0.2.1", 29500, world, is_master=False).set("host", "here")
plan = [list(range(50_000)) if rank == 0 else None]  # a large object
dist.broadcast_object_list(plan, 0)
assert len(plan[0]) == 50_000
mean = torch.tensor([loss.item(), 2.0], device="cuda")
dist.all_reduce(mean)
is_low = mean[0].item() < 0.5  # DECIDES
objects = [None] * world
dist.all_gather_object(objects, {"loss": loss.item()})  # TELLS

for tag in range(3):  # nccl has none
    sending = dist.isend(torch.ones(4, device="cuda"), (rank + 1) % world, tag=tag)
    dist.recv(torch.empty(4, device="cuda"), (rank - 1) % world, tag=tag)
    sending.wait()
dist.destroy_process_group()
