from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.initialization.environment import Place, find_place, find_rank, name_gpus

ELASTIC = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "node[01-03],x",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
}
BATCH = {  # a batch script of the same job: an allocation, and no step
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "7",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_NODELIST": "node[01-03],x",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_NAMESPACE": "2082865153",
}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2"}
ALONE = Place("alone", 0, 1, 0, 1, 0, 1)


def test_nobody_started_us() -> None:
    """Without any launcher there is a world of one at the origin's default address."""
    assert find_place({}) == ALONE
    assert (ALONE.master_addr, ALONE.master_port) == ("localhost", 12356)


def test_torchrun() -> None:
    """Torchrun says everything, the attempt and the agent's store included."""
    assert find_place(ELASTIC) == Place(*("torchrun", 3, 4, 1, 2, 1, 2, "node-a", 29400), agent_store=True, attempt=2)


def test_rollcall_is_told_from_torchrun_by_its_mark() -> None:
    """Our launcher sets torchrun's variables, and one of its own."""
    assert find_place({**ELASTIC, "ROLLCALL_RUN": "/runs/1"}).launcher == "rollcall"


def test_the_agent_serves_only_its_own_address() -> None:
    """Who passes another address does not mean the agent's store."""
    assert not find_place(ELASTIC, master_port=12345).agent_store
    assert not find_place(ELASTIC, master_addr="node-b").agent_store


def test_slurm_step() -> None:
    """A SLURM step says where each task sits, on unequal hosts too; the first host is the master."""
    place = find_place(STEP)
    assert (place.launcher, place.rank, place.world_size) == ("SLURM", 5, 7)
    assert (place.local_rank, place.local_world_size) == (1, 2)
    assert (place.node_rank, place.nnodes) == (2, 4)
    assert (place.master_addr, place.hosts[-1]) == ("node01", "x")


def test_two_slurm_steps_do_not_share_a_port() -> None:
    """The port comes from job and step: the same for all tasks of one, another for the next."""
    port = find_place(STEP).master_port
    assert find_place({**STEP, "SLURM_PROCID": "4", "SLURM_LOCALID": "0"}).master_port == port
    assert find_place({**STEP, "SLURM_STEP_ID": "1"}).master_port != port
    assert find_place({**STEP, "SLURM_JOB_ID": "4712"}).master_port != port


@pytest.mark.parametrize(
    "environ",
    [
        BATCH,
        {**BATCH, "SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "7"},
        {**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
    ],
    ids=["no step", "batch step", "interactive step"],
)
def test_an_allocation_is_no_world(environ: dict[str, str]) -> None:
    """In a batch script or an interactive shell nobody has started ranks: a world of one."""
    assert find_place(environ) == ALONE


def test_open_mpi() -> None:
    """Open MPI says rank, size and both locally; on one host the rest follows."""
    place = find_place(MPI)
    assert place == Place(*("Open MPI", 2, 3, 2, 3, 0, 1), master_addr="localhost", master_port=place.master_port)
    assert find_place({**MPI, "PMIX_NAMESPACE": "2082865154"}).master_port != place.master_port


def test_open_mpi_on_several_hosts_needs_an_address() -> None:
    """Open MPI does not say where rank 0 is: over several hosts the user must."""
    spread = {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(UsageError, match="-x MASTER_ADDR="):
        find_place(spread)
    assert find_place({**spread, "MASTER_ADDR": "node-a"}).master_addr == "node-a"


def test_mpirun_inside_slurm_wins() -> None:
    """Mpirun's daemons are tasks of a SLURM step, one per host; its ranks are what mpirun says."""
    assert find_place({**STEP, **MPI}).launcher == "Open MPI"


@pytest.fixture
def nodefile(tmp_path: Path) -> Path:
    path = tmp_path / "nodes"
    path.write_text("a\na\nb\n")
    return path


def test_pbs_task(nodefile: Path) -> None:
    """A task of pbsdsh is the line of the node file that Torque says it is."""
    environ = {"PBS_JOBID": "12.server", "PBS_NODENUM": "0", "PBS_TASKNUM": "3", "PBS_VNODENUM": "1"}
    place = find_place({**environ, "PBS_NODEFILE": str(nodefile)})
    assert (place.launcher, place.rank, place.world_size) == ("PBS", 1, 3)
    assert (place.local_rank, place.local_world_size, place.node_rank, place.nnodes) == (1, 2, 0, 2)
    assert (place.master_addr, place.hosts) == ("a", ("a", "b"))


def test_pbs_professional_task(tmp_path: Path) -> None:
    """PBS Professional says only the host: one task per host is a rank, several are an error."""
    nodes = tmp_path / "nodes"
    nodes.write_text("a\nb\n")
    environ = {"PBS_JOBID": "12", "PBS_NODENUM": "1", "PBS_TASKNUM": "0000000A", "PBS_NODEFILE": str(nodes)}
    assert (find_place(environ).rank, find_place(environ).world_size) == (1, 2)
    nodes.write_text("a\na\nb\nb\n")
    with pytest.raises(UsageError, match="which of the 2 tasks"):
        find_place(environ)


def test_pbs_without_the_node_file() -> None:
    """Where the node file is not to be read, the size must be passed."""
    environ = {"PBS_JOBID": "12", "PBS_NODENUM": "1", "PBS_TASKNUM": "2"}
    with pytest.raises(UsageError, match="pass world_size"):
        find_place(environ)
    assert find_place(environ, world_size=2, master_addr="a").rank == 1


def test_the_first_shell_of_a_pbs_job_is_no_world(nodefile: Path) -> None:
    """In the job's own shell nobody has started ranks: a world of one."""
    environ = {"PBS_JOBID": "12", "PBS_NODENUM": "0", "PBS_TASKNUM": "00000001", "PBS_VNODENUM": "0"}
    assert find_place({**environ, "PBS_NODEFILE": str(nodefile)}) == ALONE


def test_spawn() -> None:
    """Under mp.spawn the size is the argument, else WORLD_SIZE, else the number of GPUs."""
    assert find_place({}, spawn_index=1, world_size=4).world_size == 4
    assert find_place({"WORLD_SIZE": "3"}, spawn_index=1).world_size == 3
    assert find_place({}, spawn_index=1, count_gpus=lambda: 2).world_size == 2
    assert find_place({}, spawn_index=1, world_size=4).local_rank == 1


def test_spawn_without_a_size() -> None:
    """Under mp.spawn with nothing to count, the error says what to pass."""
    with pytest.raises(UsageError, match="pass world_size"):
        find_place({}, spawn_index=1)


def test_by_hand() -> None:
    """RANK and WORLD_SIZE are enough; what is local stays open."""
    assert find_place(BY_HAND) == Place("by hand", 1, 2)


@pytest.mark.parametrize(
    ("environ", "spawn_index", "launcher"),
    [
        ({**ELASTIC, **STEP, **MPI, "ROLLCALL_RUN": "r"}, 0, "rollcall"),
        ({**ELASTIC, **STEP, **MPI}, 0, "torchrun"),
        ({**BY_HAND, **STEP, **MPI}, 0, "mp.spawn"),
        ({**BY_HAND, **STEP}, None, "SLURM"),
        ({**BY_HAND, **MPI}, None, "Open MPI"),
        ({**BY_HAND, **BATCH}, None, "by hand"),
    ],
)
def test_the_innermost_launcher_counts(environ: dict[str, str], spawn_index: int | None, launcher: str) -> None:
    """Where several launchers left their marks, the one nearest to this process is believed."""
    assert find_place(environ, spawn_index=spawn_index).launcher == launcher


def test_arguments_win() -> None:
    """Passed arguments stand over every environment, broken ones included."""
    place = find_place(ELASTIC, rank=0, world_size=2, master_addr="h", master_port=5)
    assert (place.launcher, place.rank, place.world_size) == ("arguments", 0, 2)
    assert (place.master_addr, place.master_port, place.local_rank) == ("h", 5, None)
    assert find_place({"RANK": "1"}, rank=1, world_size=2).rank == 1


def test_arguments_that_repeat_the_launcher_lose_nothing() -> None:
    """Who passes on what the launcher says keeps the local rank that the launcher said."""
    assert find_place(ELASTIC, rank=3, world_size=4) == find_place(ELASTIC)


def test_half_by_hand_half_passed() -> None:
    """A half in the environment and a half in the arguments make a whole."""
    assert find_place({"WORLD_SIZE": "4"}, rank=2).rank == 2
    assert find_place({"RANK": "2"}, world_size=4).world_size == 4


@pytest.mark.parametrize(
    ("environ", "arguments", "message"),
    [
        ({"RANK": "1"}, {}, "RANK is 1, but WORLD_SIZE is not set: set both"),
        ({"WORLD_SIZE": "2"}, {}, "WORLD_SIZE is 2, but RANK is not set: set both"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, {}, "rank is 2, but world_size is 2, .* from 0 to 1"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, {}, "rank is -1, .* counted from 0"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, {}, "world_size is 0, .* 1 or more"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, {}, "RANK is 'x': expected a number"),
        ({**BY_HAND, "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, {}, "local_rank is 2, .* is 2"),
        ({**BY_HAND, "LOCAL_WORLD_SIZE": "3"}, {}, "local_world_size is 3, but world_size is 2"),
        ({**BY_HAND, "MASTER_PORT": "http"}, {}, "MASTER_PORT is 'http': expected a number"),
        ({**BY_HAND, "MASTER_PORT": "70000"}, {}, "master_port is 70000"),
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}, {}, "torchrun left RANK .* no WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, {}, "Open MPI left .* no OMPI_COMM_WORLD_RANK"),
        ({**STEP, "SLURM_NODEID": "4"}, {}, "SLURM_NODEID is 4, but the step has 4 hosts"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2"}, {}, "lists 4 hosts"),
        ({}, {"rank": 1}, "rank=1 was passed without world_size"),
        ({}, {"world_size": 2}, "world_size=2 was passed without rank"),
        ({}, {"rank": 2, "world_size": 2}, "rank is 2, but world_size is 2"),
        (ELASTIC, {"world_size": 8}, "world_size=8 was passed, but torchrun started 4 ranks"),
    ],
)
def test_what_cannot_be_is_refused(environ: dict[str, str], arguments: dict[str, int], message: str) -> None:
    """A place that cannot be is one sentence: what was found, what was expected, what to do."""
    with pytest.raises(UsageError, match=message) as caught:
        find_place(environ, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_rank_alone() -> None:
    """Who asks only for the rank needs no size, and the parent of mp.spawn is nobody's rank but 0."""
    assert find_rank({}, spawn_index=3) == 3
    assert find_rank({"WORLD_SIZE": "4"}) == 0
    assert find_rank(ELASTIC) == 3


def test_gpus_have_names_of_the_host() -> None:
    """The same index may be another GPU in another process: names come from the visible ones."""
    assert name_gpus({}, 2) == ("0", "1")
    assert name_gpus({"CUDA_VISIBLE_DEVICES": "3, 5"}, 2) == ("3", "5")
    assert name_gpus({"CUDA_VISIBLE_DEVICES": "GPU-abc"}, 1) == ("GPU-abc",)
