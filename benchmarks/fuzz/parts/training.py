"""Training loops: DDP, FSDP2, tensor and pipeline parallel, a sharded optimizer, a data loader, checkpoints."""

from benchmarks.fuzz.parts import slots
from benchmarks.fuzz.script import Loop, Slot, Writer


def ddp(w: Writer) -> None:
    """DDP with a random number of layers; gradients may be clipped, a metric averaged."""
    model, optimizer, step = w.name("model", "network"), w.name("optimizer", "sgd"), w.name("step", "batch_index")
    layers, forward, backward = _layers(w), f"{model} forward", f"{model} backward"
    turns = w.size(2, 7)
    other = layers.replace("nn.Linear(8,", "nn.Linear(8, 3), nn.Linear(3,", 1)
    known = {"layers": Slot(layers, {"ddp-model-mismatch": other})}
    w.call(f"{model} = DistributedDataParallel(nn.Sequential(<layers>))", "framework", known)
    if w.rng.random() < 0.2:
        w.line(f"{model}.register_comm_hook(None, default_hooks.fp16_compress_hook)")
    if w.rng.random() < 0.2:
        w.line(f"{optimizer} = ZeroRedundancyOptimizer({model}.parameters(), torch.optim.SGD, lr=0.1)")
    else:
        w.line(f"{optimizer} = torch.optim.SGD({model}.parameters(), lr=0.1)")
    steps = {"steps": Slot(str(turns), {"ddp-uneven-inputs": str(turns - 1)})}
    w.call(f"for {step} in range(<steps>):", "loop", steps, related=(forward, backward))
    with w.body_of(Loop(step, turns), has_forward=True):
        w.line(f"inputs = torch.randn({w.size(2, 6)}, 8)")
        w.call(f"loss = {model}(inputs).square().mean()", "framework", name=forward)
        w.call("loss.backward()", "framework", name=backward)
        if w.rng.random() < 0.5:
            w.line(f"torch.nn.utils.clip_grad_norm_({model}.parameters(), 1.0)")
        w.line(f"{optimizer}.step()")
        w.line(f"{optimizer}.zero_grad()")
        if w.rng.random() < 0.5:
            w.line("mean_loss = loss.detach().reshape(1)")
            known = {"tensor": Slot("mean_loss", {"mismatched-dtype": "mean_loss.double()"})}
            w.call("dist.all_reduce(<tensor>)", slots=known)
    w.line(f"results.append(sum(p.sum().item() for p in {model}.parameters()))")


def _layers(w: Writer) -> str:
    width = w.size(2, 12)
    middle = "".join(f", nn.ReLU(), nn.Linear({width}, {width})" for _ in range(w.size(0, 3)))
    return f"nn.Linear(8, {width}){middle}, nn.ReLU(), nn.Linear({width}, 1)"


def two_heads(w: Writer) -> None:
    """DDP of a module with two outputs, in a function; gradients are accumulated over two batches."""
    net, train, width = w.name("TwoHeads", "Tagger"), w.name("train", "fit"), w.size(3, 8)
    with w.helper(f"class {net}(nn.Module):"):
        with w.block("def __init__(self):"):
            w.line("super().__init__()")
            w.line(f"self.body, self.first = nn.Linear(6, {width}), nn.Linear({width}, 2)")
            w.line(f"self.second = nn.Linear({width}, 1)")
        w.line()
        with w.block("def forward(self, x, has_labels=True):"):
            w.line("hidden = torch.relu(self.body(x))")
            w.line("score = self.first(hidden).sum()")
            w.line("return score + self.second(hidden).sum() if has_labels else score")
    turns, forward = w.size(2, 5), f"{net} forward"
    with w.helper(f"def {train}(model):"):
        w.line("optimizer = torch.optim.Adam(model.parameters())")
        with w.loop("number", turns, has_forward=True):
            with w.block("with model.no_sync():"):
                w.line("model(torch.randn(2, 6)).backward()")
            known = {"labels": Slot("True", {"ddp-unused-parameter": "False"})}
            w.call("model(torch.randn(3, 6), <labels>).backward()", "framework", known, name=forward)
            w.line("optimizer.step()")
            w.line("optimizer.zero_grad(set_to_none=True)")
    w.line(f"results.append(len(list(DistributedDataParallel({net}()).parameters())))")
    w.line(f"{train}(DistributedDataParallel({net}()))")


def joined(w: Writer) -> None:
    """DDP with uneven inputs under join(), as torch documents it."""
    model = w.name("model", "ranker")
    w.line(f"{model} = DistributedDataParallel(nn.Linear(4, {w.size(1, 4)}))")
    with w.block(f"with {model}.join():"), w.block(f"for _ in range({w.size(1, 3)} + rank):"):
        w.line(f"{model}(torch.ones(2, 4)).sum().backward()")
    w.call("dist.barrier()")
    w.line(f"results.append({model}.module.weight.grad.sum().item())")


def sampled(w: Writer) -> None:
    """A data loader with a distributed sampler; gradients are averaged by hand."""
    rows, loader, weight = w.name("Rows", "Images"), w.name("loader"), w.name("weight")
    count = w.size(6, 14)
    with w.helper(f"class {rows}(torch.utils.data.Dataset):"):
        with w.block("def __len__(self):"):
            w.line(f"return {count}")
        w.line()
        with w.block("def __getitem__(self, index):"):
            w.call("return torch.full((3,), float(index))", "data")
    sampler = f"torch.utils.data.distributed.DistributedSampler({rows}(), world, rank, seed={w.size(1, 99)})"
    workers = w.rng.choice(("", "", "", ", num_workers=1"))
    w.line(f"{loader} = torch.utils.data.DataLoader({rows}(), batch_size=2, sampler={sampler}{workers})")
    w.line(f"{weight} = torch.ones(3, requires_grad=True)")
    with w.block(f"for rows in {loader}:"):
        w.line(f"(rows * {weight}).sum().backward()")
        w.call("dist.all_reduce(<tensor>)", slots={"tensor": slots.tensor(f"{weight}.grad", w)})
        w.line(f"{weight}.data -= 0.01 * {weight}.grad / world")
        w.line(f"{weight}.grad = None")
    w.line(f"results.append({weight}.sum().item())")


def fed(w: Writer) -> None:
    """A thread of each rank reads batches ahead, into a queue."""
    feed, batches, feeder = w.name("feed", "read_ahead"), w.name("batches"), w.name("feeder", "reader")
    turns, total = w.size(2, 6), w.name("running_sum")
    with w.helper(f"def {feed}(batches):"), w.block(f"for number in range({turns}):"):
        w.line("time.sleep(0.002)")
        w.line(f"batches.put(torch.full(({w.size()},), float(number + rank)))")
    w.line(f"{batches} = queue.Queue(maxsize=2)")
    w.line(f"{feeder} = threading.Thread(target={feed}, args=({batches},), daemon=True)")
    w.line(f"{feeder}.start()")
    with w.loop(w.name("step"), turns):
        w.line(f"{total} = {batches}.get()")
        w.call("dist.all_reduce(<tensor>)", slots={"tensor": slots.tensor(total, w)})
    w.line(f"results.append({total}.sum().item())")


def fsdp(w: Writer) -> None:
    """FSDP2: each layer sharded, then the whole."""
    model, width = w.name("model", "sharded"), w.size(2, 6) * 4
    w.line(f"{model} = nn.Sequential(*(nn.Linear({width}, {width}) for _ in range({w.size(1, 3)})))")
    is_hybrid = w.world_size > 2 and w.world_size % 2 == 0 and w.rng.random() < 0.4
    axes = '(2, world // 2), mesh_dim_names=("replicas", "shards")' if is_hybrid else "(world,)"
    w.line(f'shards = init_device_mesh("cpu", {axes})')
    with w.block(f"for layer in {model}:"):
        w.line("fully_shard(layer, mesh=shards)")
    w.line(f"fully_shard({model}, mesh=shards)")
    w.line(f"optimizer = torch.optim.SGD({model}.parameters(), lr=0.1)")
    has_clipping = w.rng.random() < 0.5
    with w.loop(w.name("step"), w.size(1, 4)):
        w.call(f"loss = {model}(torch.randn(3, {width})).square().mean()", "framework")
        w.call("loss.backward()", "framework", is_needed=has_clipping)
        if has_clipping:
            w.call(f"torch.nn.utils.clip_grad_norm_({model}.parameters(), 1.0).full_tensor()", "framework")
        w.line("optimizer.step()")
        w.line("optimizer.zero_grad()")
    w.call(f"results.append({model}[0].weight.full_tensor().sum().item())", "framework")


def tensor_parallel(w: Writer) -> None:
    """An MLP whose first layer is split by columns and whose second by rows."""
    model, width = w.name("mlp", "block"), w.size(1, 3) * w.world_size
    w.line(f"{model} = nn.Sequential(nn.Linear(6, {width}), nn.ReLU(), nn.Linear({width}, 6))")
    w.line('tp = init_device_mesh("cpu", (world,))')
    plan = '{"0": ColwiseParallel(), "2": RowwiseParallel()}'
    w.call(f"parallelize_module({model}, tp, {plan})", "framework", is_needed=True)
    with w.loop(w.name("step"), w.size(1, 4)):
        w.call(f"output = {model}(torch.ones(2, 6))", "framework")
        w.call("output.sum().backward()", "framework")
    w.line("results.append(round(output.sum().item(), 5))")


def pipeline(w: Writer) -> None:
    """torch's pipeline schedules, one stage a rank."""
    kind = w.rng.choice(("ScheduleGPipe", "Schedule1F1B"))
    width, chunks = w.size(2, 5), w.world_size + w.size(0, 2)
    stage, schedule = w.name("stage"), w.name("schedule")
    w.line(f"layer = nn.Linear({width}, {width})")
    w.line(f'{stage} = PipelineStage(layer, rank, world, torch.device("cpu"))')
    w.line(f"{schedule} = {kind}({stage}, n_microbatches={chunks}, loss_fn=nn.functional.mse_loss)")
    last = w.world_size - 1
    with w.loop(w.name("step"), w.size(1, 3)):
        with w.block("if rank == 0:", ranks=(0,)):
            w.line(f"{schedule}.step(torch.ones({chunks * 2}, {width}))")
        with w.block("elif rank == world - 1:", ranks=(last,)):
            w.line(f"{schedule}.step(target=torch.zeros({chunks * 2}, {width}), losses=[])")
        if w.world_size > 2:
            with w.block("else:", ranks=w.everyone[1:-1]):
                w.line(f"{schedule}.step()")
        w.call("dist.barrier()")
    w.line("results.append(layer.weight.grad.sum().item())")


def sharded_optimizer(w: Writer) -> None:
    """Each parameter has an owner, which gets its gradient and sends the new value to all."""
    update, owner = w.name("update", "optimizer_step"), "index % world"
    with w.helper(f"def {update}(parameters):"), w.block("for index, parameter in enumerate(parameters):"):
        known = {"root": Slot(owner, {"mismatched-root": "(index + 1) % world"})}
        w.call("dist.reduce(parameter.grad, dst=<root>)", slots=known)
        with w.block(f"if rank == {owner}:"):
            w.line("parameter.data -= 0.01 * parameter.grad / world")
        w.call("dist.broadcast(parameter.data, src=<root>)", slots=known)
    net = w.name("net", "model")
    w.line(f"{net} = nn.Sequential({_layers(w)})")
    with w.loop(w.name("step"), w.size(1, 4)):
        w.line(f"{net}(torch.ones(2, 8) * rank).sum().backward()")
        w.line(f"{update}(list({net}.parameters()))")
        w.line(f"{net}.zero_grad()")
    w.line(f"results.append(sum(p.sum().item() for p in {net}.parameters()))")


def saved(w: Writer) -> None:
    """torch.distributed.checkpoint, into the folder of the program."""
    state, folder = w.name("state_dict"), w.name("checkpoint")
    w.line(f'{state} = {{"weight": torch.full(({w.size()},), 1.0), "step": torch.tensor({w.size()})}}')
    w.call(f'checkpoint.save({state}, checkpoint_id="{folder}")', "framework")
    w.call("dist.barrier()")
    w.line(f"results.append(len(os.listdir('{folder}')) > 0)")


PARTS = (ddp, two_heads, joined, sampled, fed, fsdp, tensor_parallel, pipeline, sharded_optimizer, saved)
