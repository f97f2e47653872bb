"""Real ranks: subprocesses by hand, torchrun, mpirun, mp.spawn. No torch is mocked."""

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
from torch import nn

import rollcall
from rollcall.errors import UsageError, WorldError
from rollcall.initialization.environment import Place
from rollcall.initialization.roll_call import Card, choose_backend, expect_from, pick_gpu, take_seats
from rollcall.ports import listen
from rollcall.world import Seat
from tests.ranks import by_hand, held_port, run, run_command, started

HOST = socket.gethostname()

# Meets, adds up the ranks, leaves; as often as there are methods in argv or $METHODS.
SUM = """
    import json, os, sys, torch, torch.distributed as dist, rollcall
    methods = os.environ.get("METHODS", "env://").split()
    for method in methods:
        with rollcall.init(init_method=method, timeout_s=30) as world:
            total = torch.tensor([world.rank + 1])
            dist.all_reduce(total)
            world.barrier()
            # In one write: the ranks share mpirun's and torchrun's pipe.
            sys.stdout.write(json.dumps([total.item(), world.info.model_dump()]) + "\\n")
            sys.stdout.flush()
"""
JOIN = """
    import os, rollcall
    arguments = eval(os.environ.get("INIT", "{}"))
    with rollcall.init(**{"timeout_s": 30, **arguments}) as world:
        print("met", flush=True)
"""

# Two ranks on a busy machine may be seconds apart before they call init: let them start their clocks together.
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


class TestMeeting:
    def test_by_hand_and_again(self) -> None:
        """Ranks started by hand meet, learn their local ranks from each other, and can meet again."""
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
        """A tcp:// address is where rank 0 listens, and what the facts say."""
        with held_port() as port:
            ended = run(SUM, by_hand(2, 1, METHODS=f"tcp://localhost:{port}"))
        assert [end.code for end in ended] == [0, 0], ended
        assert read(ended[1].out)[0][1]["master_port"] == str(port)

    def test_file_by_hand_and_again(self, tmp_path: Path) -> None:
        """Ranks meet in a file, again and again in the same one, and leave no file behind."""
        method = f"file://{tmp_path}/store"
        ended = run(SUM, by_hand(2, 1, METHODS=f"{method} {method} {method}"))
        assert [end.code for end in ended] == [0, 0], ended
        assert [total for total, _ in read(ended[0].out)] == [3, 3, 3]
        assert list(tmp_path.iterdir()) == []

    def test_the_first_rank_may_come_last(self, tmp_path: Path) -> None:
        """Ranks that come before rank 0 wait for it, at an address and at a file that are not there yet."""
        with held_port() as port:
            tcp, file = f"tcp://localhost:{port}", f"file://{tmp_path}/store"
            late, *early = by_hand(3, 1, METHODS=f"{tcp} {file}")
            with started(SUM, early) as waiting, started(SUM, []) as _:
                time.sleep(2.5)  # they are there by now; if not, the test says less, and nothing wrong
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

    def test_a_restart_meets_in_the_same_file(self, tmp_path: Path) -> None:
        """The ranks of torchrun's second attempt are not kept by the file of the first, which was killed."""
        path = tmp_path / "die.py"
        path.write_text(
            textwrap.dedent(f"""
            import os, rollcall
            with rollcall.init(init_method="file://{tmp_path}/store", timeout_s=30) as world:
                world.barrier()
                if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    os.kill(os.getpid(), 9)
                print("met", flush=True)
            """)
        )
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        end = run_command([*command, "--max-restarts=1", str(path)])
        assert (end.code, end.out.count("met")) == (0, 2), end.err
        assert [file.name for file in tmp_path.iterdir()] == ["die.py"]

    @pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here: apt install openmpi-bin")
    def test_open_mpi(self, script: str) -> None:
        """Mpirun's ranks meet without being told anything."""
        command = ["mpirun", "-n", "3", "--allow-run-as-root", "--oversubscribe", sys.executable, script]
        end = run_command(command)
        assert end.code == 0, end.err
        assert sorted(facts["local_rank"] for _, facts in read(end.out)) == [0, 1, 2]

    def test_mp_spawn(self, tmp_path: Path) -> None:
        """A function under mp.spawn needs no rank, and without a size it is told what to pass."""
        path = tmp_path / "spawn.py"
        path.write_text(
            textwrap.dedent("""
            import sys, rollcall, torch.multiprocessing as mp
            def work(index, port):
                try:
                    rollcall.init()
                except rollcall.UsageError as error:
                    assert "pass world_size" in str(error)
                with rollcall.init(world_size=2, master_port=port, timeout_s=30) as world:
                    assert (world.rank, world.info.local_rank) == (index, index)
                    sys.stdout.write("met\\n")
            if __name__ == "__main__":
                mp.spawn(work, (int(sys.argv[1]),), nprocs=2)
            """)
        )
        with held_port() as port:
            end = run_command([sys.executable, str(path), str(port)])
        assert (end.code, end.out) == (0, "met\nmet\n"), end.err


class TestAbsence:
    def test_a_missing_rank_is_named_to_all_who_wait(self, tmp_path: Path) -> None:
        """After the time is over, every waiting rank says how long, who is missing, and from where."""
        with held_port() as port:
            ended = run(TOGETHER + JOIN, by_hand(3, port, INIT="dict(timeout_s=4)", READY=tmp_path)[:2])
        for end in ended:
            assert end.code == 1
            assert re.search(rf"after 4 s 2 of 3 ranks .* rank 2, expected from this host \({HOST}\)", end.sentence)
            assert "Traceback" not in end.err

    def test_a_missing_node_is_named(self) -> None:
        """Where the launcher counts hosts, a host from which nobody came is named by its number."""
        with held_port() as port, listen("") as other:
            address = _own_address(other)
            environ = {
                **{"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0},
                **{"GROUP_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": address},
                **{"MASTER_PORT": port, "INIT": "dict(timeout_s=3)"},
            }
            (end,) = run(JOIN, [environ])
        assert f"rank 1, expected from {HOST}; ranks 2, 3, expected from node 1, from which nobody came" in end.err

    def test_no_master(self) -> None:
        """A rank that cannot reach rank 0 says which address, and that rank 0 has perhaps not started."""
        with held_port() as port:
            (end,) = run(JOIN, by_hand(2, port, INIT="dict(timeout_s=2)")[1:])
        assert end.code == 1
        assert re.search(rf"could not reach rank 0 at localhost:{port} .* not started", end.sentence)

    def test_no_first_rank_at_the_file(self, tmp_path: Path) -> None:
        """A rank alone at a file says that rank 0 did not come."""
        init = f"dict(timeout_s=2, init_method='file://{tmp_path}/store')"
        (end,) = run(JOIN, by_hand(2, 1, INIT=init)[1:])
        assert (end.code, "rank 0 did not come" in end.sentence) == (1, True), end.err

    def test_a_stopped_first_rank(self) -> None:
        """A rank 0 that was stopped (Ctrl-Z) and answers nothing does not keep the others for ever."""
        with held_port() as port:
            first, second = by_hand(2, port, INIT="dict(timeout_s=3)")
            with started("import os, sys\nINIT = 'x'\n" + textwrap.dedent(STOPPED), [first]) as (stopped,):
                assert stopped.read_line() == "serving"
                os.kill(stopped.pid, signal.SIGSTOP)
                (end,) = run(JOIN, [second])
        assert end.code == 1
        assert "did not answer" in end.sentence or "could not reach" in end.sentence, end.err

    def test_a_first_rank_that_dies(self) -> None:
        """Ranks that wait in the store of a rank 0 that is killed say that it is lost, and whose it was."""
        with held_port() as port:
            environs = by_hand(3, port)[:2]
            with started(WATCHED, environs) as (first, second):
                assert second.read_line() == "waiting"
                first.process.kill()
                end = second.wait()
        assert end.code == 1
        assert re.search(rf"the store was lost .*process {first.pid} on {HOST}", end.sentence), end.err


STOPPED = """
import rollcall.initialization.stores as stores, time
spot = stores.Spot(0, 2)
stores.meet_over_tcp(spot, "localhost", int(os.environ["MASTER_PORT"]), time.monotonic() + 5)
print("serving", flush=True)
time.sleep(60)
"""
WATCHED = """
    import rollcall, rollcall.initialization.roll_call as attendance, rollcall.initialization.process_group
    answered = attendance._refuse_double
    def tell(*args):
        answered(*args)
        print("waiting", flush=True)
    attendance._refuse_double = tell
    rollcall.init(timeout_s=30)
"""


def _own_address(listener: socket.socket) -> str:
    """An address of this host beyond loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this host has no address but loopback")
        return str(probe.getsockname()[0])


class TestDisagreement:
    def test_one_rank_twice(self) -> None:
        """Two processes of one rank are named, both, to everybody who waits."""
        with held_port() as port:
            zero, one, _ = by_hand(3, port)
            ended = run(JOIN, [zero, one, one])
        assert [end.code for end in ended] == [1, 1, 1]
        for end in ended:
            assert re.search(rf"rank 1 is there twice: process \d+ on {HOST}, and process \d+ on", end.sentence)

    def test_the_first_rank_twice(self) -> None:
        """A second rank 0 finds the port taken, and says by whom."""
        with held_port() as port:
            zero = by_hand(2, port)[0]
            with started(WATCHED, [zero]) as (first,):
                assert first.read_line() == "waiting"
                (end,) = run(JOIN, [zero])
        assert end.code == 1
        assert f"rank 0 is there twice: process {first.pid} on {HOST}" in end.sentence, end.err

    def test_the_first_rank_twice_at_a_file(self, tmp_path: Path) -> None:
        """A second rank 0 at a file that a living one holds is told so, not that the file is left over."""
        zero = by_hand(2, 1, INIT=f"dict(init_method='file://{tmp_path}/store')")[0]
        with started(WATCHED.replace("timeout_s=30", f"init_method='file://{tmp_path}/store'"), [zero]) as (first,):
            assert first.read_line() == "waiting"
            (end,) = run(JOIN, [zero])
        assert f"rank 0 is there twice: process {first.pid} on {HOST}" in end.sentence, end.err

    def test_two_sizes(self) -> None:
        """Ranks that were told different sizes say so, at once, on both sides."""
        with held_port() as port:
            zero, one = by_hand(2, port)
            ended = run(JOIN, [zero, {**one, "WORLD_SIZE": 3}])
        for end in ended:
            assert end.code == 2
            assert re.search(r"rank 1 .* a world of 3, rank 0 .* of 2", end.sentence), end.err

    def test_two_backends(self) -> None:
        """Ranks that ask for different backends say so."""
        cards = [_card(0, backend="gloo"), _card(1, backend="mpi")]
        with pytest.raises(UsageError, match="different backends"):
            choose_backend(cards, [None, None])


class TestFile:
    def test_a_file_left_over_is_refused_by_all(self, tmp_path: Path) -> None:
        """After a killed run its file is refused, by rank 0 and by the others, at once and with what to do."""
        method = f"file://{tmp_path}/store"
        with started(WATCHED.replace("timeout_s=30", f"init_method='{method}'"), by_hand(2, 1)[:1]) as (first,):
            assert first.read_line() == "waiting"
            first.process.kill()
            first.wait()
        before = sorted(tmp_path.iterdir())
        ended = run(JOIN, by_hand(2, 1, INIT=f"dict(init_method='{method}')"))
        for end in ended:
            assert end.code == 2
            assert re.search(rf"left over .* process {first.pid} on {HOST}: remove it \(rm -f", end.sentence)
        assert sorted(tmp_path.iterdir()) == before

    def test_what_the_message_says_helps(self, tmp_path: Path) -> None:
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

    def test_somebody_elses_file(self, tmp_path: Path) -> None:
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
            ({"init_method": "udp://x"}, r"'udp://x', which nobody knows: use env://, tcp://.*, file://"),
            ({"init_method": "nonsense"}, "which nobody knows"),
            ({"init_method": "tcp://localhost"}, "tcp://host:port"),
            ({"init_method": "tcp://localhost:x"}, "cannot be read"),
            ({"init_method": "file://relative/path"}, "three slashes"),
            ({"backend": "nonsense"}, "'nonsense', but nobody knows it: this torch has .*gloo"),
            ({"timeout_s": 0}, "timeout_s is 0"),
            ({"rank": 1, "world_size": 1}, "rank is 1, but world_size is 1"),
        ],
    )
    def test_is_refused_at_once(self, arguments: dict[str, object], message: str) -> None:
        """What cannot work is refused before any rank is waited for."""
        with pytest.raises(UsageError, match=message):
            rollcall.init(**arguments)  # type: ignore[arg-type]

    @pytest.mark.skipif(dist.is_mpi_available(), reason="this torch has MPI")
    def test_a_backend_that_torch_lacks(self) -> None:
        """A backend that this torch was built without is refused, with those that it has."""
        with pytest.raises(UsageError, match=r"'mpi', but torch was built without it: this torch has .*gloo"):
            rollcall.init(backend="mpi")

    def test_a_busy_port(self) -> None:
        """Rank 0 on a busy port says which port, who holds it, and what to change."""
        with listen() as holder:
            port = holder.getsockname()[1]
            with pytest.raises(UsageError, match=rf"port {port} .* process {os.getpid()} .*MASTER_PORT"):
                rollcall.init(master_port=port)

    def test_a_sentence_and_an_exit_code(self) -> None:
        """A script that lets the error go ends with one sentence on stderr and the exit code of wrong usage."""
        (end,) = run("import rollcall; rollcall.init()", [{"RANK": 0}])
        assert (end.code, end.out) == (2, "")
        assert end.err == ("rollcall: RANK is 0, but WORLD_SIZE is not set: set both, or neither for a world of one\n")

    def test_a_sentence_inside_a_group(self) -> None:
        """Torch's own hook of a living group does not swallow the sentence."""
        (end,) = run("import rollcall; w = rollcall.init(); raise rollcall.WorldError('so be it')", [{}])
        assert (end.code, end.err) == (1, "rollcall: so be it\n")

    def test_a_second_init(self) -> None:
        """A second init without an end of the first is refused."""
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
        """A group that the user made in place of ours is not ours to destroy."""
        with rollcall.init():
            dist.destroy_process_group()
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        assert dist.is_initialized()
        dist.destroy_process_group()

    def test_the_hook_of_the_program_comes_back(self) -> None:
        """After a world the exception hook is what it was: worlds in a row do not pile up torch's prefixes."""
        rollcall.init().close()
        before = sys.excepthook
        rollcall.init().close()
        assert sys.excepthook is before

    def test_no_port_for_one(self) -> None:
        """A world of one binds no port: many can live on one host."""
        with listen("localhost", 0) as holder:
            os.environ["MASTER_PORT"] = str(holder.getsockname()[1])
            try:
                rollcall.init().close()
            finally:
                del os.environ["MASTER_PORT"]

    def test_an_exception_with_an_op_pending(self) -> None:
        """A rank that fails with an op under way ends at once, though the others live and do not join the op."""
        with held_port() as port, started(PENDING, by_hand(2, port)) as (first, second):
            assert second.read_line() == "failing"
            end = second.wait()
            # No clock: a rank that waits for the op waits until the other one ends.
            assert first.process.poll() is None
        assert end.code == 1
        assert "ZeroDivisionError" in end.err

    @pytest.mark.ranks(2, timeout=20)
    def test_a_model_may_outlive_its_world(self) -> None:
        """A DDP module that goes after its group, while an op is under way, does not hang."""
        import torch._dynamo

        with rollcall.init() as world:
            model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
            time.sleep(1 if world.is_first else 0)
            tensor = torch.ones(1000)
            dist.all_reduce(tensor, async_op=True)  # nobody waits for it
        del tensor
        del model

    def test_no_close_is_closed_at_the_end(self, tmp_path: Path) -> None:
        """A program that forgets to close leaves no file and no warning behind."""
        method = f"file://{tmp_path}/store"
        ended = run(f"import rollcall; world = rollcall.init(init_method='{method}')", by_hand(2, 1))
        assert [(end.code, end.err) for end in ended] == [(0, ""), (0, "")]
        assert list(tmp_path.iterdir()) == []


PENDING = """
    import time, torch, torch.distributed as dist, rollcall
    with rollcall.init(timeout_s=30) as world:
        if world.is_first:
            time.sleep(600)
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        print("failing", flush=True)
        1 / 0
"""


def _card(rank: int, host: str = "h", backend: str | None = None, **more: object) -> Card:
    fields = dict.fromkeys(("local_rank", "local_world_size", "node_rank", "nnodes"))
    return Card(**{**fields, "gpus": (), "machine": "", **more}, rank=rank, host=host, pid=rank, backend=backend)  # type: ignore[arg-type]


class TestTimeout:
    def test_torchs_own_limits_hold_without_its_deprecated_setter(self, tmp_path: Path) -> None:
        """init waits timeout_s for the ranks, then sets torch's default; torch 2.15 deprecates _set_pg_timeout."""
        script = f"""
            import torch.distributed as dist, torch, rollcall
            def refuse(*_):
                raise AssertionError("deprecated")
            dist.distributed_c10d._set_pg_timeout = refuse
            with rollcall.init(init_method="file://{tmp_path}/store", timeout_s=30):
                print(dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout)
        """
        ended = run(script, by_hand(2, 1))
        assert [(end.code, end.out) for end in ended] == [(0, "0:30:00\n")] * 2, ended


class TestDevices:
    def test_nccl_where_each_has_a_gpu(self) -> None:
        """Nccl is chosen where every rank has a GPU of its own, gloo where one has not."""
        cards = [_card(0, gpus=("0", "1")), _card(1, gpus=("0", "1"))]
        assert choose_backend(cards, [0, 1]) == "nccl"
        assert choose_backend([*cards, _card(2, gpus=("0", "1"))], [0, 1, None]) == "gloo"

    def test_one_gpu_for_two(self) -> None:
        """Under nccl two ranks on one GPU are an error of ours that names both."""
        cards = [_card(rank, backend="nccl", gpus=("0",)) for rank in range(2)]
        with pytest.raises(UsageError, match="ranks 0 and 1 on h share GPU 0, but nccl needs one for each"):
            choose_backend(cards, [0, 0])

    def test_the_same_index_is_not_the_same_gpu(self) -> None:
        """Ranks that each see one GPU, and not the same, each have their own."""
        cards = [_card(0, gpus=("3",)), _card(1, gpus=("5",)), _card(2, host="g", gpus=("3",))]
        assert choose_backend(cards, [pick_gpu(card.gpus, card.rank) for card in cards]) == "nccl"

    def test_local_rank_chooses_the_gpu(self) -> None:
        """The local rank is the index of the GPU, and never wraps around."""
        assert pick_gpu(("0", "1"), 1) == 1
        assert pick_gpu(("0", "1"), 2) is None

    def test_the_launcher_knows_better_than_the_names(self) -> None:
        """Where the launcher said a local rank it counts; where it did not, the hosts' names do."""
        cards = [_card(0, local_rank=1, local_world_size=2, node_rank=0, nnodes=1), _card(1, host="g")]
        assert take_seats(cards) == [Seat(0, 1, 1, 2), Seat(1, 2, 0, 1)]


class TestExpectation:
    def test_slurm_lists_its_hosts(self) -> None:
        """Where the launcher lists hosts in order, a missing rank's host is the listed one."""
        place = Place("SLURM", 0, 4, master_addr="a", hosts=("a", "b"), ranks_per_host=(2, 2), nnodes=2)
        came = [_card(0, host="a", node_rank=0, local_rank=0, local_world_size=2)]
        assert expect_from(3, came, place) == "b"

    def test_ranks_dealt_in_turn_are_not_guessed(self) -> None:
        """Where those who came show that ranks were dealt in turn, no host is guessed."""
        place = Place("SLURM", 0, 4, master_addr="a", hosts=("a", "b"), ranks_per_host=(2, 2), nnodes=2)
        came = [
            _card(0, host="a", node_rank=0, local_rank=0, local_world_size=2),
            _card(2, host="a", node_rank=0, local_rank=1, local_world_size=2),
        ]
        assert expect_from(3, came, place) == "node 1, from which nobody came"

    def test_by_hand_nobody_knows(self) -> None:
        """Of ranks started by hand on other hosts nobody knows the host, and the sentence says so."""
        place = Place("by hand", 0, 2, master_addr="10.0.0.1")
        assert "nobody has named" in expect_from(1, [_card(0)], place)


def test_errors_have_their_kinds() -> None:
    """Wrong usage ends with 2, a world that did not come together with 1."""
    assert (UsageError.exit_code, WorldError.exit_code) == (2, 1)
