"""Real ranks: by hand, torchrun, mpirun; mp.spawn is in record/test_any_launcher.py. No torch is mocked."""

import json
import os
import re
import shutil
import signal
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch.distributed as dist

import rollcall
from rollcall.errors import UsageError, WorldError
from rollcall.ports import listen
from tests.ranks import by_hand, held_port, run, run_command, started
from tests.said import said

HOST = socket.gethostname()

# Makes a world, adds up the ranks, and leaves, once for each init method in $METHODS.
SUM = """
    import json, os, sys, torch, torch.distributed as dist, rollcall
    methods = os.environ.get("METHODS", "env://").split()
    for method in methods:
        with rollcall.init(init_method=method, timeout_s=120) as world:
            total = torch.tensor([world.rank + 1])
            dist.all_reduce(total)
            world.barrier()
            # In one write: the ranks share the pipe of mpirun and torchrun.
            sys.stdout.write(json.dumps([total.item(), world.info.model_dump()]) + "\\n")
            sys.stdout.flush()
"""
JOIN = """
    import os, rollcall
    arguments = eval(os.environ.get("INIT", "{}"))
    with rollcall.init(**{"timeout_s": 30, **arguments}) as world:
        print("complete", flush=True)
"""

# On a busy machine two ranks may be seconds apart before they call init: let their timeouts start together.
TOGETHER = """
    import os, pathlib, time, rollcall.initialization.process_group
    ready = pathlib.Path(os.environ["READY"])
    (ready / os.environ["RANK"]).touch()
    while len(list(ready.iterdir())) < 2:
        time.sleep(0.01)
"""


def read(out: str) -> list[tuple[int, dict[str, object]]]:
    return [(line[0], line[1]) for line in map(json.loads, out.splitlines())]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "sum.py"
    path.write_text(textwrap.dedent(SUM))
    return str(path)


class TestComplete:
    def test_by_hand_several_times(self) -> None:
        """Ranks started by hand make a world, learn their local ranks from each other, and can make another."""
        with held_port() as port:
            ended = run(SUM, by_hand(3, port, METHODS="env:// env:// env://"))
        for rank, end in enumerate(ended):
            assert end.code == 0, end.err
            worlds = read(end.out)
            assert [total for total, _ in worlds] == [6, 6, 6]
            facts = worlds[0][1]
            assert (facts["global_rank"], facts["local_rank"], facts["local_world_size"]) == (rank, rank, 3)
            assert (facts["nnodes"], facts["node_rank"], facts["backend"]) == (1, 0, "gloo")

    def test_tcp_by_hand(self) -> None:
        """Rank 0 listens at a tcp:// address, and the facts name it."""
        with held_port() as port:
            ended = run(SUM, by_hand(2, 1, METHODS=f"tcp://localhost:{port}"))
        assert [end.code for end in ended] == [0, 0], ended
        assert read(ended[1].out)[0][1]["master_port"] == str(port)

    def test_file_by_hand_several_times(self, tmp_path: Path) -> None:
        """Ranks use a file as their store, several times the same one, and leave no file behind."""
        method = f"file://{tmp_path}/store"
        ended = run(SUM, by_hand(2, 1, METHODS=f"{method} {method} {method}"))
        assert [end.code for end in ended] == [0, 0], ended
        assert [total for total, _ in read(ended[0].out)] == [3, 3, 3]
        assert list(tmp_path.iterdir()) == []

    def test_the_first_rank_may_come_last(self, tmp_path: Path) -> None:
        """Ranks that start before rank 0 wait for it, at an address and at a file that do not exist yet."""
        with held_port() as port:
            tcp, file = f"tcp://localhost:{port}", f"file://{tmp_path}/store"
            late, *early = by_hand(3, 1, METHODS=f"{tcp} {file}")
            with started(SUM, early) as waiting:
                time.sleep(2.5)  # they wait by now; on a slow machine perhaps not, and the test still holds
                ended = [*run(SUM, [late]), *(rank.wait() for rank in waiting)]
        assert [end.code for end in ended] == [0, 0, 0], ended

    def test_torchrun_by_every_method(self, script: str, tmp_path: Path) -> None:
        """Under torchrun env://, tcp:// and file:// all work, one after the other, though its agent has a store."""
        with held_port() as port:
            methods = f"env:// tcp://localhost:{port} file://{tmp_path}/store env://"
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            end = run_command([*command, script], METHODS=methods)
        assert end.code == 0, end.err
        assert sorted(total for total, _ in read(end.out)) == [3] * 8

    def test_a_restart_uses_the_same_file(self, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        """The file of a killed first attempt does not stop the ranks of the second one."""
        path = tmp_path / "die.py"
        path.write_text(
            textwrap.dedent(f"""
            import os, rollcall
            with rollcall.init(init_method="file://{tmp_path}/store", timeout_s=120) as world:
                world.barrier()
                if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    os.kill(os.getpid(), 9)
                print("complete", flush=True)
            """)
        )
        command = [sys.executable, "-m", "rollcall", "run", "-n", "2", "--max-restarts", "1", str(path)]
        end = run_command(command, ROLLCALL_DIR=tmp_path_factory.mktemp("runs"))
        assert (end.code, said(end.out)) == (0, {"complete": [0, 1]}), end.err
        assert [file.name for file in tmp_path.iterdir()] == ["die.py"]

    @pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here: apt install openmpi-bin")
    def test_open_mpi(self, script: str) -> None:
        """Mpirun's ranks make a world without any argument."""
        command = ["mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", sys.executable, script]
        end = run_command(command)
        assert end.code == 0, end.err
        assert sorted(facts["local_rank"] for _, facts in read(end.out)) == [0, 1]


class TestMissing:
    def test_a_missing_rank_is_named_to_all_who_wait(self, tmp_path: Path) -> None:
        """When the time is over, every waiting rank says how long it waited, and which rank is missing from where."""
        with held_port() as port:
            ended = run(TOGETHER + JOIN, by_hand(3, port, INIT="dict(timeout_s=4)", READY=tmp_path)[:2])
        for end in ended:
            assert end.code == 1
            assert re.search(rf"after 4 s 2 of 3 ranks .* rank 2, expected from this host \({HOST}\)", end.sentence)
            assert "Traceback" not in end.err

    def test_a_stopped_first_rank(self) -> None:
        """A stopped rank 0 (Ctrl-Z), whose store answers nothing, does not block the others forever."""
        with held_port() as port:
            first, second = by_hand(2, port, INIT="dict(timeout_s=3)")
            with started(STOPPED, [first]) as (stopped,):
                assert stopped.read_line() == "serving"
                os.kill(stopped.pid, signal.SIGSTOP)
                (end,) = run(JOIN, [second])
        assert end.code == 1
        assert "did not answer" in end.sentence or "could not reach" in end.sentence, end.err

    def test_a_first_rank_that_dies(self) -> None:
        """If rank 0 is killed, ranks that wait in its store say that the store is lost, and which process served it."""
        with held_port() as port:
            environs = by_hand(3, port)[:2]
            with started(WAITING, environs) as (first, second):
                assert second.read_line() == "registered"
                first.kill()
                end = second.wait()
        assert end.code == 1
        assert re.search(rf"the store was lost .*process {first.pid} on {HOST}", end.sentence), end.err


STOPPED = """
    import os, time
    from rollcall.initialization import environment, stores
    rank_0 = environment.find_assignment(os.environ)
    stores.open_tcp_store(rank_0, "localhost", rank_0.master_port, time.monotonic() + 5)
    print("serving", flush=True)
    time.sleep(60)
"""
WAITING = """
    import rollcall
    from rollcall.initialization.roll_call import RollCall
    register = RollCall.register
    def register_and_print(*args):
        register(*args)
        print("registered", flush=True)
    RollCall.register = register_and_print
    rollcall.init(timeout_s=120)
"""


class TestFirstRankTwice:
    def test_over_tcp(self) -> None:
        """A second rank 0 finds the port in use, and names the process that holds it."""
        with held_port() as port:
            zero = by_hand(2, port)[0]
            with started(WAITING, [zero]) as (first,):
                assert first.read_line() == "registered"
                (end,) = run(JOIN, [zero])
        assert end.code == 1
        assert f"rank 0 was started twice: process {first.pid} on {HOST}" in end.sentence, end.err

    def test_in_a_file(self, tmp_path: Path) -> None:
        """A second rank 0 learns that a living one holds the file, not that the file is left over."""
        zero = by_hand(2, 1, INIT=f"dict(init_method='file://{tmp_path}/store')")[0]
        with started(WAITING.replace("timeout_s=120", f"init_method='file://{tmp_path}/store'"), [zero]) as (first,):
            assert first.read_line() == "registered"
            (end,) = run(JOIN, [zero])
        assert f"rank 0 was started twice: process {first.pid} on {HOST}" in end.sentence, end.err


class TestFile:
    def test_a_file_left_over_is_refused_by_all(self, tmp_path: Path) -> None:
        """After a killed run its file is refused, by rank 0 and by the others, at once and with what to do."""
        method = f"file://{tmp_path}/store"
        with started(WAITING.replace("timeout_s=120", f"init_method='{method}'"), by_hand(2, 1)[:1]) as (first,):
            assert first.read_line() == "registered"
            first.kill()
            first.wait()
        before = sorted(tmp_path.iterdir())
        ended = run(JOIN, by_hand(2, 1, INIT=f"dict(init_method='{method}')"))
        for end in ended:
            assert end.code == 2
            assert re.search(rf"left over .* process {first.pid} on {HOST}: remove it \(rm -f", end.sentence)
        assert sorted(tmp_path.iterdir()) == before

    def test_the_advice_works(self, tmp_path: Path) -> None:
        """After the files that the message names are removed, the next run works."""
        store = tmp_path / "store"
        store.write_text('{"rollcall": "abc", "world_size": 1, "host": "h", "pid": 1}\n')
        with pytest.raises(UsageError, match="left over") as caught:
            rollcall.init(init_method=f"file://{store}")
        named = re.search(r"rm -f ([^)]*)\)", str(caught.value))
        assert named is not None
        for path in named[1].split():
            Path(path).unlink(missing_ok=True)
        with rollcall.init(init_method=f"file://{store}"):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_no_store(self, tmp_path: Path) -> None:
        """A file that is no store is refused and not touched."""
        path = tmp_path / "train.py"
        path.write_text("print('hello')\n")
        with pytest.raises(UsageError, match="no store of rollcall's"):
            rollcall.init(init_method=f"file://{path}")
        assert path.read_text() == "print('hello')\n"

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        """A folder that does not exist is an error that names it."""
        with pytest.raises(UsageError, match=r"folder .*/nowhere .* does not exist"):
            rollcall.init(init_method=f"file://{tmp_path}/nowhere/store")

    def test_an_unwritable_folder(self) -> None:
        """A folder that nobody can write is an error that names the file."""
        with pytest.raises(UsageError, match=r"/proc/store cannot be made"):
            rollcall.init(init_method="file:///proc/store")


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"init_method": "udp://x"}, r"'udp://x', which is unknown: use env://, tcp://.*, file://"),
            ({"init_method": "nonsense"}, "which is unknown"),
            ({"init_method": "tcp://localhost"}, "tcp://host:port"),
            ({"init_method": "tcp://localhost:x"}, "cannot be read"),
            ({"init_method": "file://relative/path"}, "three slashes"),
            ({"backend": "nonsense"}, "'nonsense', but there is none of that name: this torch has .*gloo"),
            ({"timeout_s": 0}, "timeout_s is 0"),
            ({"rank": 1, "world_size": 1}, "rank is 1, but world_size is 1"),
        ],
    )
    def test_is_refused_at_once(self, arguments: dict[str, object], message: str) -> None:
        """An impossible argument is refused before the rank waits for others."""
        with pytest.raises(UsageError, match=message):
            rollcall.init(**arguments)  # type: ignore[arg-type]

    @pytest.mark.skipif(dist.is_mpi_available(), reason="this torch has MPI")
    def test_a_backend_that_torch_lacks(self) -> None:
        """A backend that this torch was built without is refused, and the error lists those that it has."""
        with pytest.raises(UsageError, match=r"'mpi', but torch was built without it: this torch has .*gloo"):
            rollcall.init(backend="mpi")

    def test_a_busy_port(self) -> None:
        """Rank 0 on a busy port says which port, who holds it, and what to change."""
        with listen() as holder:
            port = holder.getsockname()[1]
            with pytest.raises(UsageError, match=rf"port {port} .* process {os.getpid()} .*MASTER_PORT"):
                rollcall.init(master_port=port)

    def test_a_sentence_and_an_exit_code(self) -> None:
        """An uncaught error ends the script with one sentence on stderr and the exit code of wrong usage."""
        (end,) = run("import rollcall; rollcall.init()", [{"RANK": 0}], is_fresh=True)
        assert (end.code, end.out) == (2, "")
        assert end.err == ("rollcall: RANK is 0, but WORLD_SIZE is not set: set both, or neither for a world of one\n")

    def test_a_second_init(self) -> None:
        """A second init before the first world is closed is refused."""
        with rollcall.init(), pytest.raises(UsageError, match="has a group already"):
            rollcall.init()


class TestLeaving:
    def test_an_exception_ends_the_group(self) -> None:
        """The group is gone after an exception, and the exception goes on."""
        with pytest.raises(ZeroDivisionError), rollcall.init():
            _ = 1 / 0
        assert not dist.is_initialized()

    def test_closing_twice_and_after_torch(self) -> None:
        """Closing again, or after the user destroyed the group, does nothing."""
        with rollcall.init() as world:
            dist.destroy_process_group()
        world.close()
        assert not dist.is_initialized()

    def test_a_foreign_group_is_left_alone(self) -> None:
        """A group that the user made in place of rollcall's is not destroyed."""
        with rollcall.init():
            dist.destroy_process_group()
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        assert dist.is_initialized()
        dist.destroy_process_group()

    def test_the_exception_hook_is_restored(self) -> None:
        """After a world the exception hook is what it was: several worlds in a row do not pile up torch's prefixes."""
        rollcall.init().close()
        before = sys.excepthook
        rollcall.init().close()
        assert sys.excepthook is before

    def test_a_world_of_one_needs_no_port(self) -> None:
        """A world of one binds no port: many can live on one host."""
        with listen("localhost", 0) as holder:
            os.environ["MASTER_PORT"] = str(holder.getsockname()[1])
            try:
                rollcall.init().close()
            finally:
                del os.environ["MASTER_PORT"]

    def test_an_exception_with_an_op_pending(self) -> None:
        """A rank that fails while an op is pending ends at once, though the other rank lives and never joins the op."""
        with held_port() as port, started(PENDING, by_hand(2, port), is_fresh=True) as (first, second):
            assert second.read_line() == "failing"
            end = second.wait()
            # No time limit is needed: a rank that waited for the op would wait until the other one ends.
            assert first.is_running
        assert end.code == 1
        assert "ZeroDivisionError" in end.err

    def test_a_model_may_outlive_its_world(self) -> None:
        """A DDP module that is deleted after its group, while an op is pending, does not hang."""
        with held_port() as port:
            ended = run(OUTLIVED, by_hand(2, port))
        assert [(end.code, end.out) for end in ended] == [(0, "deleted\n")] * 2, ended

    def test_a_world_is_closed_when_the_program_ends(self, tmp_path: Path) -> None:
        """A program that forgets to close its world leaves no file and no warning behind. One that fails inside it
        prints its sentence alone: the exception hook that torch installs with a group does not hide it."""
        method = f"file://{tmp_path}/store"
        script = f"""
            import rollcall
            world = rollcall.init(init_method='{method}')
            if world.rank == 1:
                raise rollcall.WorldError("so be it")
        """
        ended = run(script, by_hand(2, 1), is_fresh=True)
        assert [(end.code, end.err) for end in ended] == [(0, ""), (1, "rollcall: so be it\n")]
        assert list(tmp_path.iterdir()) == []


OUTLIVED = """
    import time, torch, torch.distributed as dist, rollcall
    from torch import nn
    with rollcall.init(timeout_s=120) as world:
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        time.sleep(1 if world.is_first else 0)
        tensor = torch.ones(1000)
        dist.all_reduce(tensor, async_op=True)  # nobody waits for it
    del tensor
    del model
    print("deleted")
"""
PENDING = """
    import time, torch, torch.distributed as dist, rollcall
    with rollcall.init(timeout_s=120) as world:
        if world.is_first:
            time.sleep(600)
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        print("failing", flush=True)
        1 / 0
"""


class TestTimeout:
    def test_torchs_own_limits_hold_without_its_deprecated_setter(self, tmp_path: Path) -> None:
        """init waits timeout_s for the ranks, then sets torch's default; torch 2.15 deprecates _set_pg_timeout."""
        script = f"""
            import torch.distributed as dist, torch, rollcall
            def refuse(*_):
                raise AssertionError("deprecated")
            dist.distributed_c10d._set_pg_timeout = refuse
            with rollcall.init(init_method="file://{tmp_path}/store", timeout_s=120):
                print(dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout)
        """
        ended = run(script, by_hand(2, 1))
        assert [(end.code, end.out) for end in ended] == [(0, "0:30:00\n")] * 2, ended


def test_exit_codes() -> None:
    """Wrong usage ends with 2, a world that did not come together with 1."""
    assert (UsageError.exit_code, WorldError.exit_code) == (2, 1)
