"""`rollcall run` on one machine: what it prints, what it keeps, what it returns."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from tests.rollcall_command import Runner
from tests.said import said

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


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_ranks_meet_and_equal_lines_are_folded(rollcall: Runner) -> None:
    """Four ranks form a world; equal lines that come close together are shown once, the rest with its rank."""
    rollcall.script(ALL_REDUCE)
    result = rollcall("run", "-n", 4, "script.py")
    assert result.code == 0, result.err
    assert said(result.out)["the sum is 4"] == [0, 1, 2, 3]
    assert {f"  {r} │ I am rank {r}" for r in range(4)} <= set(lines_of(result.out))
    # Not every line finds all its equals in time.
    assert sum(" │ step " in line for line in lines_of(result.out)) < 4 * 100
    assert result.err == ""


def test_each_rank_has_its_raw_log(rollcall: Runner) -> None:
    """The run's folder keeps what each rank wrote, byte for byte, stdout and stderr in order."""
    rollcall.script("import os, sys; print('out', os.environ['RANK']); sys.stderr.write('no newline \\x1b[1mbold')")
    rollcall("run", "-n", 2, "script.py")
    for rank in range(2):
        log = rollcall.latest() / "logs" / "attempt-0" / f"rank-{rank}.log"
        assert log.read_bytes() == f"out {rank}\nno newline \x1b[1mbold".encode()


def test_run_json_tells_the_whole_run(rollcall: Runner) -> None:
    """run.json has plan, command, versions, attempts, exit codes and outcome."""
    rollcall.script("import os, sys; sys.exit(int(os.environ['RANK']))")
    rollcall("run", "-n", 2, "script.py", "an argument")
    facts = json.loads((rollcall.latest() / "run.json").read_text())
    assert facts["command"] == ["rollcall", "run", "-n", "2", "script.py", "an argument"]
    assert facts["plan"]["slots"] == 2
    assert facts["outcome"] == "failed"
    assert facts["exit_code"] == 1
    assert facts["attempts"][0]["exit_codes"]["1"] == 1
    assert set(facts["versions"]) == {"rollcall", "torch", "python"}


def test_runs_are_listed(rollcall: Runner) -> None:
    """`rollcall runs` shows when, command, ranks, how long, outcome; and says so where there are none."""
    assert "no runs here yet" in rollcall("runs").out
    rollcall.script("import sys; sys.exit(3)")
    rollcall("run", "-n", 2, "script.py")
    listed = rollcall("runs").out
    assert re.search(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +rollcall run -n 2 script.py +2 +[\d.]+ s +failed \(exit code 3\)", listed
    )


def test_the_first_to_fail_is_named_with_its_traceback_once(rollcall: Runner) -> None:
    """Rank 1 raises; the others fail because of it: one sentence, one traceback, one line for the cascade."""
    rollcall.script(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1:\n"
        "    raise ValueError('the guilty one')\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    result = rollcall("run", "-n", 4, "script.py")
    assert result.code == 1
    assert re.search(r"rollcall: rank 1 on \S+ exited with code 1: ValueError: the guilty one", result.err)
    assert result.err.count("Traceback (most recent call last):") == 1
    assert f'File "{rollcall.folder}/script.py", line 4, in <module>' in result.err
    assert "rollcall/launch" not in result.err
    assert len(re.findall(r"failed after it, most likely because of it", result.err)) <= 1
    assert "Traceback" not in result.out


@pytest.mark.parametrize("start", ["warm", "fresh"])
def test_a_killed_rank_is_named_in_words(rollcall: Runner, start: str) -> None:
    """SIGKILL is told as such, with what is often behind it; the exit code is 128 + 9."""
    rollcall.script(
        "import os, signal, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 2:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    result = rollcall("run", "-n", 3, "--start", start, "script.py")
    assert result.code == 137
    assert re.search(r"rank 2 on \S+ was killed by SIGKILL: often the out-of-memory killer", result.err)


def test_ranks_that_fail_alike_are_told_together(rollcall: Runner) -> None:
    """All exit with 5: no rank is blamed for the others."""
    rollcall.script("import sys; sys.exit(5)")
    result = rollcall("run", "-n", 3, "script.py")
    assert result.code == 5
    assert "failed in the same way" in result.err
    assert "because of it" not in result.err


def test_a_logged_traceback_of_a_living_rank_is_shown(rollcall: Runner) -> None:
    """A traceback that ends nobody appears on the console like any other lines."""
    rollcall.script(
        "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\nprint('went on')\n"
    )
    result = rollcall("run", "-n", 2, "script.py")
    assert result.code == 0
    assert said(result.err)["ZeroDivisionError: division by zero"] == [0, 1]
    assert said(result.out)["went on"] == [0, 1]


def test_restarts_are_numbered_and_keep_their_own_logs(rollcall: Runner) -> None:
    """Rank 1 is killed in attempts 0 and 1; attempt 2 succeeds, on an address of its own."""
    rollcall.script(
        "import os, signal, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "print('attempt', attempt, 'at', os.environ['MASTER_PORT'])\n"
        "if attempt < 2 and dist.get_rank() == 1:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_reduce(torch.ones(1))\n"
        "print('done')\n"
    )
    result = rollcall("run", "-n", 4, "--max-restarts", 3, "script.py")
    assert result.code == 0, result.err
    assert "starting attempt 2 of at most 3" in result.err
    ports = set()
    for attempt in range(3):
        for rank in range(4):
            log = (rollcall.latest() / "logs" / f"attempt-{attempt}" / f"rank-{rank}.log").read_text()
            assert f"attempt {attempt} at " in log or attempt < 2
            assert ("done" in log) == (attempt == 2)
            ports.update(re.findall(r"at (\d+)", log))
    assert len(ports) == 3
    assert "ok, 3 attempts" in rollcall("runs").out


def test_restarts_end(rollcall: Runner) -> None:
    """After the last attempt the run fails with the rank's exit code."""
    rollcall.script("import sys; sys.exit(9)")
    result = rollcall("run", "-n", 2, "--max-restarts", 1, "script.py")
    assert result.code == 9
    assert len(list((rollcall.latest() / "logs").iterdir())) == 2


def test_stdin_reaches_the_ranks(rollcall: Runner) -> None:
    """As under torchrun, ranks read what is piped into the command."""
    rollcall.script("import os, sys\nif os.environ['RANK'] == '0': print('read', sys.stdin.read().strip())")
    assert "0 │ read from the pipe" in rollcall("run", "-n", 2, "script.py", stdin="from the pipe").out


def test_show_chooses_ranks(rollcall: Runner) -> None:
    """--show 0,2-3 leaves rank 1 to its log."""
    rollcall.script("import os; print('rank', os.environ['RANK'])")
    result = rollcall("run", "-n", 4, "--show", "0,2-3", "script.py")
    assert [r for r in range(4) if f"rank {r}" in result.out] == [0, 2, 3]
    assert "rank 1" in (rollcall.latest() / "logs" / "attempt-0" / "rank-1.log").read_text()


def test_torchruns_log_options(rollcall: Runner) -> None:
    """--log-dir has torchrun's layout; --redirects keeps a stream from the console, --tee shows it again."""
    rollcall.script(
        "import os, sys; print('out', os.environ['RANK']); print('err', os.environ['RANK'], file=sys.stderr)"
    )
    result = rollcall(
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
    where = rollcall.folder / "logs" / "job" / "attempt_0" / "1"
    assert (where / "stdout.log").read_text() == "out 1\n"
    assert (where / "stderr.log").read_text() == "err 1\n"


def test_modules_commands_and_folders(rollcall: Runner) -> None:
    """-m runs a module, --no-python a command, and a folder its __main__.py."""
    package = rollcall.folder / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert said(rollcall("run", "-n", 2, "-m", "pack", "x").out)["__main__ ['x']"] == [0, 1]
    assert said(rollcall("run", "-n", 2, "pack", "y").out)["__main__ ['y']"] == [0, 1]
    assert said(rollcall("run", "-n", 2, "--no-python", "echo", "two words").out)["two words"] == [0, 1]


def test_options_of_the_script_are_its_own(rollcall: Runner) -> None:
    """What follows the script goes to it untouched, even if rollcall has an option of that name."""
    rollcall.script("import sys; print(sys.argv[1:])")
    result = rollcall("run", "-n", 2, "script.py", "--show", "7", "-n", "9", "--", "--help")
    assert said(result.out)["['--show', '7', '-n', '9', '--', '--help']"] == [0, 1]


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


def test_100_mb_of_output_and_a_line_without_end(rollcall: Runner) -> None:
    """Nothing is lost from the logs, lines on the console stay whole, and memory stays bounded."""
    rollcall.script(
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "if rank == '0':\n"
        "    for i in range(500_000): print(f'{i:0100d}')\n"
        "else:\n"
        "    for _ in range(800): sys.stdout.write('x' * 65536)\n"
    )
    out = rollcall.folder / "console.txt"
    with open(out, "w") as file:
        process = rollcall.start("run", "-n", 2, "script.py", stdout=file)
        process.communicate(timeout=120)
    assert process.returncode == 0
    logs = rollcall.latest() / "logs" / "attempt-0"
    assert (logs / "rank-0.log").stat().st_size == 500_000 * 101
    assert (logs / "rank-1.log").stat().st_size == 800 * 65536
    numbers = 0
    with open(out) as lines:
        for line in lines:
            if line.startswith("  0 │ "):
                assert int(line[6:]) == numbers
                numbers += 1
    assert numbers == 500_000


def test_piped_output_has_no_control_codes_and_a_terminal_gets_colour(rollcall: Runner) -> None:
    """Colours go to a terminal alone."""
    rollcall.script("print('\\x1b[32mgreen\\x1b[0m')")
    assert "\x1b" not in rollcall("run", "-n", 2, "script.py").out
    ours, theirs = pty.openpty()
    process = rollcall.start("run", "-n", 2, "script.py", stdout=theirs)
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 4096):
            text += chunk
    except OSError:  # Linux says so at the end of a terminal
        pass
    os.close(ours)
    process.communicate()
    assert b"\x1b[32mgreen" in text
    assert b"0-1" in text


def test_two_hosts_by_hand(rollcall: Runner, free_port: int) -> None:
    """Two terminals, --node-rank 0 and 1: one world of four, ranks in the order of the hosts."""
    rollcall.script(ALL_REDUCE)
    common = ["run", "--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", free_port, "-n", 2]
    second = rollcall.start(*common, "--node-rank", 1, "script.py")
    first = rollcall.start(*common, "--node-rank", 0, "script.py")
    outs = [process.communicate(timeout=60) for process in (first, second)]
    assert first.returncode == second.returncode == 0, outs
    assert {r for r in range(4) if f"I am rank {r}" in outs[0][0]} == {0, 1}
    assert {r for r in range(4) if f"I am rank {r}" in outs[1][0]} == {2, 3}
    assert "the sum is 4" in outs[1][0]


def test_a_failure_on_one_host_by_hand_ends_and_is_told_on_the_other(rollcall: Runner, free_port: int) -> None:
    """Rank 3 dies on host 1; host 0 names it and ends, too."""
    rollcall.script("import os, sys, time\nif os.environ['RANK'] == '3':\n    sys.exit(4)\ntime.sleep(60)\n")
    common = ["run", "--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", free_port, "-n", 2]
    first = rollcall.start(*common, "--node-rank", 0, "script.py")
    second = rollcall.start(*common, "--node-rank", 1, "script.py")
    (_, err0), (_, err1) = first.communicate(timeout=60), second.communicate(timeout=60)
    assert second.returncode == 4, err1
    assert first.returncode == 1, err0
    assert re.search(r"rank 3 on \S+ exited with code 4", err0)


def test_a_restart_by_hand_takes_both_hosts_along(rollcall: Runner, free_port: int) -> None:
    """A rank of host 1 fails in attempt 0; attempt 1 runs on both."""
    rollcall.script(
        "import os, sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and dist.get_rank() == 3:\n    sys.exit(4)\n"
        "dist.all_reduce(torch.ones(1))\n"
        "print('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], 'done')\n"
    )
    common = ["run", "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "-n", 2, "--max-restarts", 1]
    first, second = (rollcall.start(*common, "--node-rank", node, "script.py") for node in (0, 1))
    (out0, err0), (out1, err1) = first.communicate(timeout=60), second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), err0 + err1
    assert "attempt 1 done" in out0
    assert "attempt 1 done" in out1


def test_plain_torchrun_can_use_our_rendezvous(rollcall: Runner) -> None:
    """`torchrun --rdzv-backend rollcall` meets on our handler."""
    rollcall.script(ALL_REDUCE)
    words = [
        "-m",
        "torch.distributed.run",
        "--rdzv-backend",
        "rollcall",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        "--nproc-per-node",
        "2",
    ]
    ran = subprocess.run(
        [sys.executable, *words, "script.py"],
        cwd=rollcall.folder,
        env=rollcall.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("the sum is") == 2  # torchrun does not keep lines whole: the 2 may come later
