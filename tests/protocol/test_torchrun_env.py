from rollcall.initialization.environment import RankAssignment, find_assignment
from rollcall.protocol.torchrun_env import rank_env


def test_a_rank_reads_back_what_a_launcher_sets() -> None:
    """The variables of a launcher tell a rank all its numbers, and that the launcher serves the store."""
    numbers = {"rank": 5, "world_size": 6, "local_rank": 1, "local_world_size": 2, "node_rank": 2, "nnodes": 3}
    environ = rank_env(**numbers, master_addr="a", master_port=4242, run_id="x", attempt=1, max_restarts=3)
    expected = RankAssignment("torchrun", **numbers, master_addr="a", master_port=4242, agent_store=True, attempt=1)
    assert find_assignment(environ) == expected
