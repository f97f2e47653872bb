"""train_steps.py MODEL STEPS [--profile] [--record] [--backend gloo|nccl] [--device cpu|cuda] [--meet FILE]

Trains with DDP, as any script would, and notes how long each step took and what the parameters are at the end:
in $ROLLCALL_BENCH/rank-R.json. Under a launcher that records, it does nothing for it; `--record` is for one that does
not, and `--meet` for ranks that were started by hand.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ["ROLLCALL_BENCH"])
WIDTHS = {"digits": (64, 256, 256, 10), "ten-million": (512, 2048, 2048, 2048, 512)}
BATCH = {"digits": 64, "ten-million": 32}
STEPS_OF_GPU = 10  # measured together: one alone would only say how fast it was asked for


def make_model(widths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, next_wide in itertools.pairwise(widths):
        layers += [nn.Linear(wide, next_wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load_data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The digits themselves, where scikit-learn is there; else noise of their shape, which takes as long."""
    if name == "digits":
        with contextlib.suppress(ImportError):
            from sklearn.datasets import load_digits

            digits = load_digits()
            return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    widths = WIDTHS[name]
    return torch.randn(1797, widths[0]), torch.randint(widths[-1], (1797,))


def train(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    inputs, labels = (each.to(device) for each in load_data(options.model))
    model = DistributedDataParallel(make_model(WIDTHS[options.model]).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    chance = torch.Generator().manual_seed(dist.get_rank())
    block = 1 if device.type == "cpu" else STEPS_OF_GPU
    took_ns = []
    cpu_from_ns = time.process_time_ns()
    for _ in range(options.steps // block):
        batches = [
            torch.randint(len(inputs), (BATCH[options.model],), generator=chance).to(device) for _ in range(block)
        ]
        started_ns = time.perf_counter_ns()
        for chosen in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took_ns.append((time.perf_counter_ns() - started_ns) / block)
    cpu_ns = (time.process_time_ns() - cpu_from_ns) / len(took_ns) / block
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return {"steps_ns": took_ns, "cpu_ns": cpu_ns, "digest": digest.hexdigest()}


def main(options: argparse.Namespace) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if options.record:
        from rollcall.record import recorder

        recorder.begin(FOLDER, rank, size, attempt=0)
    meet = {"init_method": f"file://{options.meet}"} if options.meet else {}
    dist.init_process_group(options.backend, rank=rank, world_size=size, **meet)
    device = torch.device(options.device)
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if options.profile else None
    with profile or contextlib.nullcontext():
        figures = train(options, device)
    (FOLDER / f"rank-{rank}.json").write_text(json.dumps(figures))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=WIDTHS)
    parser.add_argument("steps", type=int)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--meet")
    main(parser.parse_args())
