"""What a command of the user is told of a run, and what Prometheus scrapes from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollcall.coordinator import launcher
from rollcall.coordinator.observers.events import Events, check
from rollcall.coordinator.observers.monitor_process import listener_of
from rollcall.errors import UsageError
from rollcall.ports import find_free_port
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan, Program
from tests.rollcall_command import Runner, until


class Told:
    """Events whose command appends to a file; what the user was told, and a clock."""

    def __init__(self, folder: Path, command: str) -> None:
        self.now_s, self.said, self.path = 0.0, list[str](), folder / "told.jsonl"
        self.events = Events(command.format(self.path), folder, self.said.append, lambda: self.now_s)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


def test_each_event_is_one_json_object_on_standard_input(tmp_path: Path) -> None:
    told = Told(tmp_path, "cat >> {}")
    told.events.emit("started", attempt=0)
    assert until(told.lines)
    told.events.emit("host-lost", host="b", ranks=[2, 3])
    told.events.close()
    first, second = told.lines()
    assert (first["event"], first["attempt"], first["run"]) == ("started", 0, tmp_path.name)
    assert (second["event"], second["host"], second["ranks"]) == ("host-lost", "b", [2, 3])
    assert told.said == []


def test_a_slow_command_keeps_no_other_event_waiting(tmp_path: Path) -> None:
    """And is ended in the end."""
    told = Told(tmp_path, "read line; case $line in *started*) exec sleep 600;; esac; echo $line >> {}")
    told.events.emit("started")
    told.events.emit("finished")
    assert until(told.lines)
    told.now_s += 31
    told.events.tick()
    assert "took longer than 30 s for started, and was ended" in told.said[0]


def test_a_command_that_fails_is_told_once(tmp_path: Path) -> None:
    told = Told(tmp_path, "exit 3")
    for _ in range(2):
        told.events.emit("started")
    told.events.close()
    (said,) = told.said
    assert "--on-event ended with 3 for started" in said


def test_without_a_command_nothing_is_started(tmp_path: Path) -> None:
    told = Told(tmp_path, "")
    told.events.emit("started")
    told.events.close()
    assert told.said == []


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        listener_of(address)


def test_a_port_that_is_taken_is_refused() -> None:
    with listener_of(str(find_free_port())) as taken:
        host, port = taken.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(UsageError, match="is in use"):
            listener_of(f"127.0.0.1:{port}")


PROGRAM = """\
import os, sys, time, urllib.request
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1000))
seen = ""
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
while dist.get_rank() == 0 and f'op="all_reduce"}} {2 + 2 * attempt}' not in seen:
    seen = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read().decode()
    time.sleep(0.1)
dist.barrier()
print(seen)
sys.exit(0 if attempt else 3)
"""


def test_a_run_that_restarts_tells_its_events_and_serves_its_metrics(warm_rollcall: Runner) -> None:
    port = find_free_port()
    warm_rollcall.script(PROGRAM)
    options = ("--max-restarts", 1, "--metrics", port, "--on-event", "cat >> events.jsonl")
    result = warm_rollcall("run", "-n", 2, *options, "script.py", port)
    assert result.code == 0, result.err
    assert 'op="all_reduce"} 2' in result.out
    assert 'op="all_reduce"} 4' in result.out
    events = [json.loads(line) for line in (warm_rollcall.folder / "events.jsonl").read_text().splitlines()]
    assert [each["event"] for each in events] == ["started", "restart", "started", "finished"]
    assert "exited with code 3" in events[1]["why"]
    assert (events[-1]["outcome"], events[-1]["exit_code"]) == ("ok", 0)
    assert warm_rollcall.wait_until_gone() == []


def test_a_command_that_is_not_there_is_noticed_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan(Program("module", "m"), (Host("this host", 2),), on_event="no-such-command --page")
    with pytest.raises(UsageError, match="there is no command no-such-command here: check its name, or give its whole"):
        launcher.run(plan)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["no-such", "./no-such.sh", __file__, f"{__file__} --page"])
def test_a_file_that_cannot_be_executed_is_no_command(command: str) -> None:
    with pytest.raises(UsageError, match="there is no command"):
        check(command)


@pytest.mark.parametrize("command", ["cat >> told", "PAGE=1 no-such", "if true; then cat; fi", "(cat)"])
def test_other_lines_are_left_to_the_shell(command: str) -> None:
    check(command)
