"""How ranks find the store of their world, each decided in this process."""

import gc
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore

from rollcall.errors import WorldError
from rollcall.initialization.environment import RankAssignment
from rollcall.initialization.stores import WorldClaim, claim_world, join_world, open_file_store, open_tcp_store
from rollcall.world import get_hostname
from tests.initialization.fake_time import FakeTime
from tests.ranks import held_port

TIMEOUT_S = 10.0


class TestClaims:
    ONE = RankAssignment("by hand", 1, 3)

    def test_a_rank_joins_the_claim_of_rank_0(self) -> None:
        """A rank that comes first waits until rank 0 has written its claim."""
        time, store = FakeTime(), HashStore()
        claims: list[WorldClaim] = []
        time.at(1.0, lambda: claims.append(claim_world(store, RankAssignment("by hand", 0, 3))))
        assert [join_world(store, self.ONE, TIMEOUT_S, time.clock)] == claims

    def test_a_missing_rank_0_is_named_with_the_other_missing_ranks(self) -> None:
        """Ranks that wait for rank 0 in vain know which others are missing too."""
        time, store = FakeTime(), HashStore()
        with pytest.raises(WorldError, match="rank 0 did not come within 10 s, nor did ranks 2: see whether"):
            join_world(store, self.ONE, TIMEOUT_S, time.clock)

    def test_a_second_rank_0_is_refused(self) -> None:
        """A rank 0 that finds the claim of another process names both."""
        store = HashStore()
        store.set("world", WorldClaim("id", 2, "elsewhere", 7).to_json())
        with pytest.raises(WorldError, match=rf"rank 0 was started twice: process 7 on elsewhere, .* {get_hostname()}"):
            claim_world(store, RankAssignment("by hand", 0, 2))

    def test_a_process_replaces_its_own_claim(self) -> None:
        """After a world that did not come together the same process may open another."""
        store = HashStore()
        zero = RankAssignment("by hand", 0, 3)
        first, second = claim_world(store, zero), claim_world(store, zero)
        assert first != second
        assert join_world(store, self.ONE, 0, FakeTime().clock) == second


def test_a_file_that_was_left_is_never_opened_again(tmp_path: Path) -> None:
    """FileStore's destructor opens its file. Where somebody is just removing the folder, it waits for minutes."""
    world = open_file_store(RankAssignment("by hand", 0, 1), tmp_path / "store", time.monotonic() + TIMEOUT_S)
    world.store.set("key", "value")
    (data,) = set(tmp_path.iterdir()) - {tmp_path / "store"}
    world.leave(True)
    assert list(tmp_path.iterdir()) == []
    data.touch()
    del world
    gc.collect()
    assert data.read_bytes() == b""


class TestWithoutRank0:
    ONE = RankAssignment("by hand", 1, 2)

    def test_over_tcp(self) -> None:
        """A rank that cannot reach rank 0 names the address, and says that rank 0 has perhaps not started."""
        with held_port() as port, pytest.raises(WorldError) as caught:
            open_tcp_store(self.ONE, "localhost", port, time.monotonic())
        assert f"could not reach rank 0 at localhost:{port} for 0 s" in str(caught.value)
        assert "rank 0 has perhaps not started" in str(caught.value)

    def test_in_a_file(self, tmp_path: Path) -> None:
        """A rank that waits for the file of rank 0 says that rank 0 did not come, and leaves no file behind."""
        with pytest.raises(WorldError, match=f"rank 0 did not come to {tmp_path}/store within 0 s"):
            open_file_store(self.ONE, tmp_path / "store", time.monotonic())
        assert list(tmp_path.iterdir()) == []
