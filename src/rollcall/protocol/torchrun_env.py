"""The environment variables by which torchrun tells a rank its number and its store. rollcall run sets the same."""

# By the names that rollcall gives these numbers.
NUMBERS = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
}
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
RUN_ID = "TORCHELASTIC_RUN_ID"
ATTEMPT = "TORCHELASTIC_RESTART_COUNT"  # the restarts so far: attempts are counted from 0
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": a store already listens at the master address


def rank_env(
    *,
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    node_rank: int,
    nnodes: int,
    master_addr: str,
    master_port: int,
    run_id: str,
    attempt: int = 0,
    max_restarts: int = 0,
) -> dict[str, str]:
    """What a launcher that serves the store itself sets for one rank."""
    numbers = {
        "rank": rank,
        "world_size": world_size,
        "local_rank": local_rank,
        "local_world_size": local_world_size,
        "node_rank": node_rank,
        "nnodes": nnodes,
    }
    return {
        **{NUMBERS[key]: str(number) for key, number in numbers.items()},
        MASTER_ADDR: master_addr,
        MASTER_PORT: str(master_port),
        RUN_ID: run_id,
        ATTEMPT: str(attempt),
        MAX_RESTARTS: str(max_restarts),
        AGENT_STORE: "True",
    }
