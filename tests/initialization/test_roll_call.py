"""The decisions of the roll call: a real store in this process, and a clock that the test moves."""

import pytest
from torch.distributed import HashStore

from rollcall.errors import RollcallError, UsageError, WorldError
from rollcall.initialization.environment import RankAssignment
from rollcall.initialization.placement import Placement
from rollcall.initialization.roll_call import (
    LEAVE_S,
    Decision,
    Registration,
    RollCall,
    choose_backend,
    decide_placements,
    expected_host,
    leave_store,
    pick_gpu,
)
from rollcall.initialization.stores import WorldClaim, WorldStore
from rollcall.world import get_hostname
from tests.initialization.fake_time import FakeTime

TIMEOUT_S = 10.0


def registration(rank: int, host: str = "h", **more: object) -> Registration:
    return Registration(rank=rank, host=host, machine="", pid=100 + rank, **more)  # type: ignore[arg-type]


class Ranks:
    """The ranks of one world, all in this process."""

    def __init__(self, world_size: int, **assignment: object) -> None:
        self.time = FakeTime()
        self.store = HashStore()
        self._world_size, self._assignment = world_size, assignment

    def roll_call(self, rank: int, world_size: int | None = None) -> RollCall:
        world = WorldStore(self.store, WorldClaim("id", self._world_size, "h", 100), leave=lambda last: None)
        size = world_size or self._world_size
        assignment = RankAssignment("by hand", rank, size, **self._assignment)  # type: ignore[arg-type]
        return RollCall(world, assignment, TIMEOUT_S, TIMEOUT_S, self.time.clock)

    def register(self, mine: Registration) -> None:
        self.roll_call(mine.rank).register(mine)

    def decision(self, rank: int) -> Decision:
        return self.roll_call(rank).wait_for_decision()

    def error(self, rank: int) -> RollcallError:
        with pytest.raises(RollcallError) as caught:
            self.decision(rank)
        return caught.value


class TestComplete:
    def test_rank_0_waits_for_the_last_rank(self) -> None:
        """The decision is made when the last rank has registered, and all ranks read the same one."""
        ranks = Ranks(3)
        ranks.register(registration(0))
        ranks.register(registration(2))
        ranks.time.at(4.0, lambda: ranks.register(registration(1, host="g")))
        decision = ranks.decision(0)
        assert 4.0 <= ranks.time.now < 4.2
        assert decision.placements == (Placement(0, 2, 0, 2), Placement(1, 2, 0, 1), Placement(0, 2, 1, 2))
        assert (decision.backend, decision.gpus) == ("gloo", (None, None, None))
        assert ranks.decision(1) == ranks.decision(2) == decision

    def test_other_ranks_wait_for_the_decision(self) -> None:
        """A rank other than 0 decides nothing while there is time."""
        ranks = Ranks(2)
        ranks.register(registration(0))
        ranks.register(registration(1))
        ranks.time.at(3.0, lambda: ranks.decision(0))
        assert ranks.decision(1).backend == "gloo"
        assert ranks.time.now >= 3.0

    def test_gpus_are_those_of_the_local_ranks(self) -> None:
        """Under nccl each rank gets the GPU of its local rank."""
        ranks = Ranks(2)
        for rank in range(2):
            ranks.register(registration(rank, gpus=("0", "1")))
        assert (ranks.decision(0).backend, ranks.decision(1).gpus) == ("nccl", (0, 1))


class TestMissing:
    def test_rank_0_names_the_missing_ranks_when_the_time_is_over(self) -> None:
        """The error says how long the rank waited, how many came, and which are missing."""
        ranks = Ranks(4)
        ranks.register(registration(0))
        ranks.register(registration(2))
        error = ranks.error(0)
        assert isinstance(error, WorldError)
        expected = f"after 10 s 2 of 4 ranks had come, missing: ranks 1,3, expected from this host ({get_hostname()})"
        assert str(error).startswith(expected)

    def test_every_rank_raises_the_same_error(self) -> None:
        """The first error that a rank publishes is raised by all."""
        ranks = Ranks(3)
        ranks.register(registration(0))
        ranks.register(registration(1))
        assert str(ranks.error(1)) == str(ranks.error(0))

    def test_a_rank_that_registers_after_the_end_is_refused(self) -> None:
        """A late rank raises the error that was decided without it."""
        ranks = Ranks(2)
        ranks.register(registration(0))
        error = ranks.error(0)
        ranks.register(registration(1))
        assert str(ranks.error(1)) == str(error)

    def test_a_host_without_any_rank_is_named_by_its_number(self) -> None:
        """Where the launcher counts hosts, the missing ranks of two hosts are named separately."""
        ranks = Ranks(6, master_addr="10.0.0.1", nnodes=2)
        ranks.register(registration(0, node_rank=0, nnodes=2, local_rank=0, local_world_size=2))
        assert "rank 1, expected from h; ranks 2-5, expected from node 1, from which no rank came" in str(
            ranks.error(0)
        )

    def test_the_schedulers_list_names_the_host(self) -> None:
        """Where the launcher lists hosts in order, a missing rank's host is the listed one."""
        listed = RankAssignment("SLURM", 0, 4, master_addr="a", hosts=("a", "b"), ranks_per_host=(2, 2), nnodes=2)
        came = [registration(0, host="a", node_rank=0, local_rank=0, local_world_size=2)]
        assert expected_host(3, came, listed) == "b"

    def test_no_host_is_named_where_ranks_are_not_in_a_row(self) -> None:
        """The list is not used where the registered ranks contradict it."""
        listed = RankAssignment("SLURM", 0, 4, master_addr="a", hosts=("a", "b"), ranks_per_host=(2, 2), nnodes=2)
        came = [registration(n, host="a", node_rank=0, local_rank=n // 2, local_world_size=2) for n in (0, 2)]
        assert expected_host(3, came, listed) == "node 1, from which no rank came"

    def test_hosts_of_ranks_started_by_hand_are_unknown(self) -> None:
        """Where nothing tells a missing rank's host, the error says so."""
        by_hand = RankAssignment("by hand", 0, 2, master_addr="10.0.0.1")
        assert expected_host(1, [registration(0)], by_hand) == "an unknown host (the ranks were started by hand)"


class TestConflicts:
    def test_one_rank_twice(self) -> None:
        """Two processes of one rank are both named, to the second of them and to all that wait."""
        ranks = Ranks(3)
        ranks.register(registration(0))
        ranks.register(registration(1))
        sentence = "rank 1 was started twice: process 101 on h, and process 101 on g"
        with pytest.raises(WorldError, match=sentence):
            ranks.register(registration(1, host="g"))
        assert str(ranks.error(0)).startswith(sentence)
        assert ranks.time.now < TIMEOUT_S

    def test_two_world_sizes(self) -> None:
        """Ranks that were given different world sizes learn both, at once, as wrong usage."""
        ranks = Ranks(2)
        ranks.register(registration(0))
        with pytest.raises(UsageError, match=r"rank 1 .* with world_size 3, rank 0 .* with 2: use the same"):
            ranks.roll_call(1, world_size=3).register(registration(1))
        assert isinstance(ranks.error(0), UsageError)
        assert ranks.time.now < TIMEOUT_S

    def test_two_backends(self) -> None:
        """Ranks that ask for different backends raise an error that names both, as wrong usage."""
        ranks = Ranks(2)
        ranks.register(registration(0, backend="gloo"))
        ranks.register(registration(1, backend="mpi"))
        for error in (ranks.error(0), ranks.error(1)):
            assert isinstance(error, UsageError)
            assert "different backends (rank 1 mpi, rank 0 gloo)" in str(error)


class TestGpus:
    def test_nccl_where_each_rank_has_a_gpu(self) -> None:
        """Nccl is chosen where every rank has a GPU of its own, gloo where one has not."""
        came = [registration(0, gpus=("0", "1")), registration(1, gpus=("0", "1"))]
        assert choose_backend(came, [0, 1]) == "nccl"
        assert choose_backend([*came, registration(2, gpus=("0", "1"))], [0, 1, None]) == "gloo"

    def test_one_gpu_for_two_ranks(self) -> None:
        """Under nccl two ranks on one GPU are an error that names both."""
        came = [registration(rank, backend="nccl", gpus=("0",)) for rank in range(2)]
        with pytest.raises(UsageError, match="ranks 0 and 1 on h share GPU 0, but nccl needs one for each"):
            choose_backend(came, [0, 0])

    def test_a_host_with_too_few_gpus(self) -> None:
        """Under nccl a rank without a GPU is an error of all ranks that names the rank and counts the GPUs."""
        ranks = Ranks(2)
        for rank in range(2):
            ranks.register(registration(rank, host="hg"[rank], backend="nccl", gpus=("0", "1") if rank == 0 else ()))
        for error in (ranks.error(0), ranks.error(1)):
            assert isinstance(error, UsageError)
            assert "rank 1 on g has no GPU of its own (0 on that host), but nccl needs one" in str(error)

    def test_the_same_index_is_not_the_same_gpu(self) -> None:
        """Ranks that each see one GPU, and not the same, each have their own."""
        came = [registration(0, gpus=("3",)), registration(1, gpus=("5",)), registration(2, host="g", gpus=("3",))]
        assert choose_backend(came, [pick_gpu(each.gpus, each.rank) for each in came]) == "nccl"

    def test_the_local_rank_chooses_the_gpu(self) -> None:
        """The local rank is the index of the GPU, and never wraps around."""
        assert pick_gpu(("0", "1"), 1) == 1
        assert pick_gpu(("0", "1"), 2) is None


def test_the_launchers_numbers_come_before_the_host_names() -> None:
    """A local rank that the launcher set is used; where it set none, the hosts' names decide."""
    came = [registration(0, local_rank=1, local_world_size=2, node_rank=0, nnodes=1), registration(1, host="g")]
    assert decide_placements(came) == [Placement(0, 1, 1, 2), Placement(1, 2, 0, 1)]


class TestLeaving:
    def left(self, time: FakeTime, store: HashStore, rank: int, wait: bool = True) -> bool:
        """Whether a rank of two leaves the store as the last one."""
        last: list[bool] = []
        leave_store(WorldStore(store, WorldClaim("id", 2, "h", 100), last.append), rank, 2, wait, time.clock)
        return last[0]

    def test_rank_0_leaves_last(self) -> None:
        """Rank 0 waits for the others, since the store may live in its process."""
        time, store = FakeTime(), HashStore()
        time.at(2.0, lambda: self.left(time, store, rank=1))
        assert self.left(time, store, rank=0)
        assert 2.0 <= time.now < LEAVE_S

    def test_rank_0_does_not_wait_forever(self) -> None:
        """A rank that never leaves delays rank 0 by a few seconds only, and a failed rank 0 does not wait at all."""
        time = FakeTime()
        assert not self.left(time, HashStore(), rank=0)
        assert time.now == pytest.approx(LEAVE_S)
        assert not self.left(time, HashStore(), rank=0, wait=False)
        assert time.now == pytest.approx(LEAVE_S)
