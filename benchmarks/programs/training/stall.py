"""One rank with 100 million parameters: steps without a snapshot, with one beside them, and a blocking torch.save."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import rollcall

LAYERS, WIDTH, BATCH = 24, 2048, 64
QUIET_STEPS = 3


def main(snapshots: int) -> None:
    with rollcall.init() as world, tempfile.TemporaryDirectory() as folder:
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(world.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        snapshot = rollcall.Snapshot(Path(folder, "snapshots"), world, model, optimizer, keep=1)
        inputs = torch.randn(BATCH, WIDTH, device=world.device)

        def step() -> float:
            began = time.perf_counter()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            return time.perf_counter() - began

        step()
        snapshot.save(0, wait=True)  # the first one also takes the memory for the copies
        names = ("quiet_step", "call", "waited", "saving_step", "write", "torch_save")
        figures: dict[str, list[float]] = {name: [] for name in names}
        for number in range(1, snapshots + 1):
            figures["quiet_step"] += [step() for _ in range(QUIET_STEPS)]
            began = time.perf_counter()
            snapshot.save(number)
            call_s = time.perf_counter() - began
            figures["call"].append(call_s)
            waited_before_s = snapshot.waited_s
            figures["saving_step"].append(call_s + step())
            figures["waited"].append(snapshot.waited_s - waited_before_s)
            snapshot.wait()
            figures["write"].append(time.perf_counter() - began)
            began = time.perf_counter()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder, "blocking.pt"))
            figures["torch_save"].append(time.perf_counter() - began)
        snapshot.close()
    figures["parameters"] = [sum(each.numel() for each in model.parameters())]
    Path(os.environ["ROLLCALL_BENCH"], "stall.json").write_text(json.dumps(figures))


main(int(sys.argv[1]))
