"""Programs that destroy a group right after their last step."""

from dataclasses import replace

import pytest
import torch.distributed as dist

from rollcall.compat import gloo_exit
from tests.rollcall_command import Runner
from tests.said import said

# The model goes after its group, as it does where `main` ends with destroy_process_group.
ENDS_AT_ONCE = """\
import os, torch, torch.distributed as dist
from torch import nn

def train(store):
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    )
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 64)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

for number in range(15):
    train(os.path.abspath(f"store-{number}"))
"""


@pytest.mark.parametrize("options", [["--no-record"], []], ids=["bare", "recorded"])
def test_a_program_ends_right_after_its_last_step(rollcall: Runner, options: list[str]) -> None:
    """Fifteen times in each rank; torch alone hangs in the first few."""
    rollcall.script(ENDS_AT_ONCE)
    ran = rollcall("run", "-n", 2, *options, "--timeout", 60, "script.py")
    assert (ran.code, ran.err) == (0, "")


DESTROYS_GROUPS = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")

def use_a_group():
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)

use_a_group()
before = len(os.listdir("/proc/self/task"))
for _ in range(3):
    use_a_group()
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_a_group_that_is_destroyed_goes_with_its_threads(rollcall: Runner) -> None:
    """Recording it does not keep it."""
    rollcall.script(DESTROYS_GROUPS)
    assert said(rollcall("run", "-n", 2, "script.py").out) == {"0": [0, 1]}


# A thread that has the name of gloo's, and is at work when the program is over. Python would end without it.
BUSY_THREAD = """\
import hashlib, os, threading, time, torch.distributed as dist
dist.init_process_group("gloo")
is_busy = threading.Event()

def work():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write("pt_gloo_test")
    is_busy.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
    os.write(1, b"finished\\n")
    time.sleep(60)

threading.Thread(target=work, daemon=True).start()
is_busy.wait()
"""


def test_a_fresh_interpreter_lets_threads_of_gloo_finish(rollcall: Runner) -> None:
    """Also if the program does not destroy its group: a thread that drops an op later than that aborts the process."""
    rollcall.script(BUSY_THREAD)
    ran = rollcall("run", "-n", 2, "--start", "fresh", "script.py")
    assert (ran.code, said(ran.out)) == (0, {"finished": [0, 1]})


def test_a_patch_that_fails_destroys_the_group_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, with what it was called with, and what it returns."""
    monkeypatch.setattr(gloo_exit, "_thread_states", lambda: 1 / 0)
    calls: list[object] = []
    assert gloo_exit._settling(lambda *args: calls.append(args) or "destroyed")("group") == "destroyed"
    assert calls == [("group",)]


def test_it_is_left_out_where_torch_is_not_as_it_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dist.destroy_process_group
    monkeypatch.setattr(gloo_exit, "PATCH", replace(gloo_exit.PATCH, uses=("torch.distributed:no_such_name",)))
    gloo_exit.install()
    assert dist.destroy_process_group is before
