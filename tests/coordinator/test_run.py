"""`rollcall run` on one machine: what it prints, what it keeps, what it returns."""

import json
import os
import pty
import re

from tests.rollcall_command import Runner
from tests.said import said
from tests.torch_output import without_torchs

ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("the sum is", int(total.item()))
print("I am rank", dist.get_rank())
for step in range(100):
    print("step", step)
dist.destroy_process_group()
"""


LAST_WORDS = r"""
import sys
print("read", sys.stdin.read() if os.environ["RANK"] == "0" else "nothing")
sys.stderr.write("no newline \x1b[1mbold")
"""


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_a_run_that_ends_well(rollcall: Runner) -> None:
    """Four ranks form a world. Equal lines that come close together are shown once, the rest with its rank; a pipe gets
    no control codes, and stderr nothing of rollcall. Each rank's log has its bytes as they were written, stdout and
    stderr in order. What is piped into the command reaches the ranks, as under torchrun."""
    rollcall.script(ALL_REDUCE + LAST_WORDS)
    result = rollcall("run", "-n", 4, "script.py", stdin="from the pipe")
    assert result.code == 0, result.err
    assert said(result.out)["the sum is 4"] == [0, 1, 2, 3]
    assert {f"  {r} │ I am rank {r}" for r in range(4)} <= set(lines_of(result.out))
    # Not every line finds all its equals in time.
    assert sum(" │ step " in line for line in lines_of(result.out)) < 4 * 100
    assert said(result.err) == {"no newline bold": [0, 1, 2, 3]}
    assert "\x1b" not in result.out + result.err
    for rank in range(4):
        log = (rollcall.latest() / "logs" / "attempt-0" / f"rank-{rank}.log").read_bytes()
        steps = "".join(f"step {step}\n" for step in range(100))
        read = "from the pipe" if rank == 0 else "nothing"
        words = f"the sum is 4\nI am rank {rank}\n{steps}read {read}\nno newline \x1b[1mbold"
        assert without_torchs(log.decode()) == words


def test_a_run_that_fails(warm_rollcall: Runner) -> None:
    """All ranks exit with 9, in the only restart, too: so does the run, and no rank is blamed for the others. run.json
    has plan, command, versions, attempts, exit codes and outcome. `rollcall runs` shows when, command, ranks, how long,
    outcome; and says so where there are no runs."""
    assert "no runs here yet" in warm_rollcall("runs").out
    warm_rollcall.script("import sys; sys.exit(9)")
    result = warm_rollcall("run", "-n", 2, "--max-restarts", 1, "script.py", "an argument")
    assert result.code == 9
    assert "failed in the same way" in result.err
    assert "because of it" not in result.err
    assert len(list((warm_rollcall.latest() / "logs").iterdir())) == 2
    facts = json.loads((warm_rollcall.latest() / "run.json").read_text())
    command = ["rollcall", "run", "-n", "2", "--max-restarts", "1", "script.py", "an argument"]
    assert facts["command"] == command
    assert facts["plan"]["slots"] == 2
    assert (facts["outcome"], facts["exit_code"]) == ("failed", 9)
    assert [attempt["exit_codes"] for attempt in facts["attempts"]] == [{"0": 9, "1": 9}] * 2
    assert set(facts["versions"]) == {"rollcall", "torch", "python"}
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    typed = "rollcall run -n 2 --max-restarts 1 script.py 'an argument'"
    assert re.search(rf"{when} +{typed} +2 +[\d.]+ m?s +failed \(exit code 9\)", warm_rollcall("runs").out)


def test_the_first_to_fail_is_named_with_its_traceback_once(warm_rollcall: Runner) -> None:
    """Rank 1 raises; the others fail because of it: one sentence, one traceback, one line for the cascade."""
    warm_rollcall.script(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1:\n"
        "    raise ValueError('the guilty one')\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    result = warm_rollcall("run", "-n", 4, "script.py")
    assert result.code == 1
    assert re.search(r"rollcall: rank 1 on \S+ exited with code 1: ValueError: the guilty one", result.err)
    assert result.err.count("Traceback (most recent call last):") == 1
    assert f'File "{warm_rollcall.folder}/script.py", line 4, in <module>' in result.err
    assert "rollcall/launch" not in result.err
    assert len(re.findall(r"failed after it, most likely because of it", result.err)) <= 1
    assert "Traceback" not in result.out


def test_a_killed_rank_is_named_in_words(rollcall: Runner) -> None:
    """SIGKILL is told as such, with what is often behind it; the exit code is 128 + 9. Here of a fresh interpreter:
    what restarts tell of a warm one is tested below."""
    rollcall.script(
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)\n"
    )
    result = rollcall("run", "-n", 2, "--start", "fresh", "script.py")
    assert result.code == 137
    assert re.search(r"rank 1 on \S+ was killed by SIGKILL: often the out-of-memory killer", result.err)


def test_restarts_are_numbered_and_keep_their_own_logs(warm_rollcall: Runner) -> None:
    """Rank 1 is killed in attempt 0, which is told; attempt 1 succeeds, on an address of its own."""
    warm_rollcall.script(
        "import os, signal, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "print('attempt', attempt, 'at', os.environ['MASTER_PORT'])\n"
        "if attempt < 1 and dist.get_rank() == 1:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_reduce(torch.ones(1))\n"
        "print('done')\n"
    )
    result = warm_rollcall("run", "-n", 3, "--max-restarts", 3, "script.py")
    assert result.code == 0, result.err
    assert re.search(r"rank 1 on \S+ was killed by SIGKILL: often the out-of-memory killer", result.err)
    assert "starting attempt 1 of at most 3" in result.err
    ports = set()
    for attempt in range(2):
        for rank in range(3):
            log = (warm_rollcall.latest() / "logs" / f"attempt-{attempt}" / f"rank-{rank}.log").read_text()
            assert f"attempt {attempt} at " in log or attempt < 1
            assert ("done" in log) == (attempt == 1)
            ports.update(re.findall(r"at (\d+)", log))
    assert len(ports) == 2
    assert "ok, 2 attempts" in warm_rollcall("runs").out


def test_a_terminal_gets_colour_and_the_ranks_that_are_shown(warm_rollcall: Runner) -> None:
    """Colour of the ranks, and our own. --show 0,2-3 leaves rank 1 to its log. A traceback that ends nobody is shown
    like any other lines."""
    warm_rollcall.script(
        "import os, traceback\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
        "print('\\x1b[32mgreen\\x1b[0m')\n"
        "print('rank', os.environ['RANK'], 'goes on')\n"
    )
    ours, theirs = pty.openpty()
    process = warm_rollcall.start("run", "-n", 4, "--show", "0,2-3", "script.py", stdout=theirs)
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 4096):
            text += chunk
    except OSError:  # Linux says so at the end of a terminal
        pass
    os.close(ours)
    _, err = process.communicate()
    assert process.returncode == 0
    assert b"\x1b[32mgreen" in text
    assert re.search(rb"\x1b\[\d+m(0,2-3|0,2|  0) ", text)  # equal lines are one, if they come together
    assert [r for r in range(4) if f"rank {r} goes on" in text.decode()] == [0, 2, 3]
    assert said(err)["ZeroDivisionError: division by zero"] == [0, 2, 3]
    assert "rank 1 goes on" in (warm_rollcall.latest() / "logs" / "attempt-0" / "rank-1.log").read_text()


def test_torchruns_log_options(warm_rollcall: Runner) -> None:
    """--log-dir has torchrun's layout; --redirects keeps a stream from the console, --tee shows it again."""
    warm_rollcall.script(
        "import os, sys; print('out', os.environ['RANK']); print('err', os.environ['RANK'], file=sys.stderr)"
    )
    result = warm_rollcall(
        "run",
        "--nproc_per_node",
        2,
        "--log_dir",
        "logs",
        "--rdzv_id",
        "job",
        "--redirects",
        3,
        "--tee",
        "0:1",
        "script.py",
    )
    assert "out 0" in result.out
    assert "out 1" not in result.out
    assert "err" not in result.err
    where = warm_rollcall.folder / "logs" / "job" / "attempt_0" / "1"
    assert (where / "stdout.log").read_text() == "out 1\n"
    assert (where / "stderr.log").read_text() == "err 1\n"


def test_a_local_module_hides_a_preloaded_one(rollcall: Runner) -> None:
    """A file named like a module that is loaded already is imported by the script, as under python."""
    rollcall.script("WHO = 'mine'", name="numpy.py")
    rollcall.script("import numpy; print(numpy.WHO)")
    result = rollcall("run", "-n", 2, "script.py")
    assert said(result.out)["mine"] == [0, 1]
    assert "numpy has the name of a module that is already loaded: ranks start as fresh interpreters" in result.err


def test_a_preloaded_module_that_starts_threads_means_fresh_ranks(rollcall: Runner) -> None:
    """A server with threads is not safe to fork: ranks start as new interpreters, and it is said."""
    rollcall.script(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()", name="busy.py"
    )
    rollcall.script("import sys; print('busy loaded:', 'busy' in sys.modules)")
    result = rollcall("run", "-n", 2, "--preload", "busy", "script.py")
    assert said(result.out)["busy loaded: False"] == [0, 1]
    assert "a preloaded module started 1 thread: ranks start as fresh interpreters" in result.err


def test_dry_run_prints_what_you_would_have_typed(rollcall: Runner) -> None:
    """--dry-run starts nothing, and prints a line for each rank that works when typed."""
    rollcall.script(ALL_REDUCE)
    result = rollcall("run", "-n", 2, "--dry-run", "--master-port", 0, "script.py", "a b")
    assert result.code == 0
    commands = [line for line in lines_of(result.out) if line.startswith("MASTER_ADDR=")]
    assert len(commands) == 2
    assert all(f"RANK={rank}" in command for rank, command in enumerate(commands))
    assert "'a b'" in commands[0]
    assert not (rollcall.folder / ".rollcall").exists()


def test_a_full_disk_behind_stdout_and_stderr_ends_no_run(rollcall: Runner) -> None:
    """The logs, which are elsewhere, have all of it."""
    rollcall.script("for epoch in range(3): print(f'epoch {epoch}')")
    with open("/dev/full", "w") as full:
        process = rollcall.start("run", "-n", 1, "script.py", stdout=full, stderr=full)
        assert process.wait(180) == 0
    assert (rollcall.latest() / "logs/attempt-0/rank-0.log").read_text() == "epoch 0\nepoch 1\nepoch 2\n"


def test_20_mb_of_output_and_a_line_without_end(warm_rollcall: Runner) -> None:
    """Nothing is lost from the logs, lines on the console stay whole, and memory stays bounded."""
    warm_rollcall.script(
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "if rank == '0':\n"
        "    for i in range(100_000): print(f'{i:0100d}')\n"
        "else:\n"
        "    for _ in range(160): sys.stdout.write('x' * 65536)\n"
    )
    out = warm_rollcall.folder / "console.txt"
    with open(out, "w") as file:
        process = warm_rollcall.start("run", "-n", 2, "script.py", stdout=file)
        process.communicate(timeout=180)
    assert process.returncode == 0
    logs = warm_rollcall.latest() / "logs" / "attempt-0"
    assert (logs / "rank-0.log").stat().st_size == 100_000 * 101
    assert (logs / "rank-1.log").stat().st_size == 160 * 65536
    numbers = 0
    with open(out) as lines:
        for line in lines:
            if line.startswith("  0 │ "):
                assert int(line[6:]) == numbers
                numbers += 1
    assert numbers == 100_000


def test_two_hosts_by_hand(rollcall: Runner, free_port: int) -> None:
    """Two terminals, --node-rank 0 and 1: one world of four, ranks in the order of the hosts. A rank of host 1 fails in
    attempt 0; attempt 1 runs on both. What the other host says of a last failure is in test_attempts.py."""
    rollcall.script(
        "import os, sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and dist.get_rank() == 3:\n    sys.exit(4)\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "print('rank', dist.get_rank(), 'has', int(total), 'in attempt', os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
    )
    common = ["run", "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "-n", 2, "--max-restarts", 1]
    hosts = [rollcall.start(*common, "--node-rank", node, "script.py") for node in (0, 1)]
    outs = [host.communicate(timeout=180) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outs
    for (out, _), ranks in zip(outs, ([0, 1], [2, 3]), strict=True):
        assert [r for r in range(4) if f"rank {r} has 4 in attempt 1" in out] == ranks
    assert re.search(r"rank 3 on \S+ exited with code 4", outs[1][1])
