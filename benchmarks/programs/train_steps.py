"""train_steps.py MODEL --blocks N --steps N --port PORT [--profile] [--record] [--backend …] [--device …] [--meet FILE]

Trains with DDP, as any script would, a block of steps whenever it is its turn (turns.py), and tells how long a step
took. What the parameters are at the end goes into $ROLLCALL_BENCH/rank-R.json. Under a launcher that records, it does
nothing for it; `--record` is for one that does not, and `--meet` for ranks that were started by hand.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import turns
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ["ROLLCALL_BENCH"])
WIDTHS = {"digits": (64, 256, 256, 10), "ten-million": (512, 2048, 2048, 2048, 512)}
BATCH = {"digits": 64, "ten-million": 32, "gpt": 16}
Batch = tuple[torch.Tensor, torch.Tensor]


def make_model(name: str) -> nn.Module:
    if name == "gpt":
        import gpt

        return gpt.Gpt()
    layers: list[nn.Module] = []
    for wide, next_wide in itertools.pairwise(WIDTHS[name]):
        layers += [nn.Linear(wide, next_wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load_data(name: str) -> Batch:
    """The digits themselves, where scikit-learn is there; else noise of their shape, which takes as long."""
    if name == "gpt":
        import gpt

        tokens = torch.randint(gpt.VOCABULARY, (64, gpt.LENGTH + 1))
        return tokens[:, :-1], tokens[:, 1:]
    if name == "digits":
        with contextlib.suppress(ImportError):
            from sklearn.datasets import load_digits

            digits = load_digits()
            return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    widths = WIDTHS[name]
    return torch.randn(1797, widths[0]), torch.randint(widths[-1], (1797,))


def prepare(
    options: argparse.Namespace, device: torch.device, cpu_ns: list[float]
) -> tuple[nn.Module, Callable[[], float]]:
    """The model, and a block of steps that says how many nanoseconds one took, and notes how many of a CPU."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(options.model == "gpt")  # on a GPU, it would not be the same twice
    inputs, labels = (each.to(device) for each in load_data(options.model))
    model = DistributedDataParallel(make_model(options.model).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    chance = torch.Generator().manual_seed(dist.get_rank())
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=options.model == "gpt")

    def run() -> float:
        batches = [
            torch.randint(len(inputs), (BATCH[options.model],), generator=chance).to(device)
            for _ in range(options.steps)
        ]
        wait()
        started_ns, cpu_from_ns = time.perf_counter_ns(), time.process_time_ns()
        for chosen in batches:
            optimizer.zero_grad()
            with mixed:
                loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen].flatten())
            loss.backward()
            optimizer.step()
        wait()
        cpu_ns.append((time.process_time_ns() - cpu_from_ns) / options.steps)
        return (time.perf_counter_ns() - started_ns) / options.steps

    return model, run


def main(options: argparse.Namespace) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if options.record:
        from rollcall.record import recorder

        recorder.begin(FOLDER, rank, size, attempt=0)
    meet = {"init_method": f"file://{options.meet}"} if options.meet else {}
    dist.init_process_group(options.backend, rank=rank, world_size=size, **meet)
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if options.profile else None
    with profile or contextlib.nullcontext():
        cpu_ns: list[float] = []
        model, block = prepare(options, torch.device(options.device), cpu_ns)
        block()  # not measured
        if rank == 0:
            turns.play(options.port, options.blocks, block)
        else:  # they follow the first, whom they need for every step
            for _ in range(options.blocks):
                block()
    told: dict[str, Any] = {"cpu_ns": median(cpu_ns[1:]), "digest": digest(model)}
    (FOLDER / f"rank-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=BATCH)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--meet")
    main(parser.parse_args())
