from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.initialization.environment import RankAssignment, find_assignment, find_launched_rank, name_gpus

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
ALONE = RankAssignment("alone", 0, 1, 0, 1, 0, 1)


def test_without_a_launcher() -> None:
    """Without a launcher there is a world of one, at the default address."""
    assert find_assignment({}) == ALONE
    assert (ALONE.master_addr, ALONE.master_port) == ("localhost", 12356)


def test_torchrun() -> None:
    """Torchrun sets everything, the attempt and the agent's store included."""
    assert find_assignment(ELASTIC) == RankAssignment(
        *("torchrun", 3, 4, 1, 2, 1, 2, "node-a", 29400), agent_store=True, attempt=2
    )


def test_rollcall_differs_from_torchrun_by_one_variable() -> None:
    """`rollcall run` sets torchrun's variables, and one of its own."""
    assert find_assignment({**ELASTIC, "ROLLCALL_RUN": "/runs/1"}).launcher == "rollcall"


def test_the_agent_serves_only_its_own_address() -> None:
    """An argument with another address does not mean the agent's store."""
    assert not find_assignment(ELASTIC, master_port=12345).agent_store
    assert not find_assignment(ELASTIC, master_addr="node-b").agent_store


def test_slurm_step() -> None:
    """A SLURM step says on which host each task runs, on unequal hosts too; the first host is the master."""
    found = find_assignment(STEP)
    assert (found.launcher, found.rank, found.world_size) == ("SLURM", 5, 7)
    assert (found.local_rank, found.local_world_size) == (1, 2)
    assert (found.node_rank, found.nnodes) == (2, 4)
    assert (found.master_addr, found.hosts[-1]) == ("node01", "x")


def test_two_slurm_steps_do_not_share_a_port() -> None:
    """The port follows from job and step: the same for all tasks of a step, another for the next step."""
    port = find_assignment(STEP).master_port
    assert find_assignment({**STEP, "SLURM_PROCID": "4", "SLURM_LOCALID": "0"}).master_port == port
    assert find_assignment({**STEP, "SLURM_STEP_ID": "1"}).master_port != port
    assert find_assignment({**STEP, "SLURM_JOB_ID": "4712"}).master_port != port


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
    """In a batch script or an interactive shell no ranks have been started: a world of one."""
    assert find_assignment(environ) == ALONE


def test_open_mpi() -> None:
    """Open MPI sets rank and size, in all and on this host; on one host the rest follows."""
    found = find_assignment(MPI)
    assert found == RankAssignment(
        *("Open MPI", 2, 3, 2, 3, 0, 1), master_addr="localhost", master_port=found.master_port
    )
    assert find_assignment({**MPI, "PMIX_NAMESPACE": "2082865154"}).master_port != found.master_port


def test_open_mpi_on_several_hosts_needs_an_address() -> None:
    """Open MPI does not say where rank 0 is: over several hosts the user must."""
    spread = {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(UsageError, match="-x MASTER_ADDR="):
        find_assignment(spread)
    assert find_assignment({**spread, "MASTER_ADDR": "node-a"}).master_addr == "node-a"


def test_mpirun_inside_slurm_wins() -> None:
    """Mpirun's daemons are tasks of a SLURM step, one per host; the ranks are those that mpirun numbers."""
    assert find_assignment({**STEP, **MPI}).launcher == "Open MPI"


@pytest.fixture
def nodefile(tmp_path: Path) -> Path:
    path = tmp_path / "nodes"
    path.write_text("a\na\nb\n")
    return path


def test_pbs_task(nodefile: Path) -> None:
    """Torque gives each task of pbsdsh its line in the node file."""
    environ = {"PBS_JOBID": "12.server", "PBS_NODENUM": "0", "PBS_TASKNUM": "3", "PBS_VNODENUM": "1"}
    found = find_assignment({**environ, "PBS_NODEFILE": str(nodefile)})
    assert (found.launcher, found.rank, found.world_size) == ("PBS", 1, 3)
    assert (found.local_rank, found.local_world_size, found.node_rank, found.nnodes) == (1, 2, 0, 2)
    assert (found.master_addr, found.hosts) == ("a", ("a", "b"))


def test_pbs_professional_task(tmp_path: Path) -> None:
    """PBS Professional gives only the host: one task per host is a rank, several are an error."""
    nodes = tmp_path / "nodes"
    nodes.write_text("a\nb\n")
    environ = {"PBS_JOBID": "12", "PBS_NODENUM": "1", "PBS_TASKNUM": "0000000A", "PBS_NODEFILE": str(nodes)}
    assert (find_assignment(environ).rank, find_assignment(environ).world_size) == (1, 2)
    nodes.write_text("a\na\nb\nb\n")
    with pytest.raises(UsageError, match="which of the 2 tasks"):
        find_assignment(environ)


def test_pbs_without_the_node_file() -> None:
    """Where the node file cannot be read, the world size must be passed."""
    environ = {"PBS_JOBID": "12", "PBS_NODENUM": "1", "PBS_TASKNUM": "2"}
    with pytest.raises(UsageError, match="pass world_size"):
        find_assignment(environ)
    assert find_assignment(environ, world_size=2, master_addr="a").rank == 1


def test_the_first_shell_of_a_pbs_job_is_no_world(nodefile: Path) -> None:
    """In the job's own shell no ranks have been started: a world of one."""
    environ = {"PBS_JOBID": "12", "PBS_NODENUM": "0", "PBS_TASKNUM": "00000001", "PBS_VNODENUM": "0"}
    assert find_assignment({**environ, "PBS_NODEFILE": str(nodefile)}) == ALONE


def test_spawn() -> None:
    """Under mp.spawn the size is the argument, else WORLD_SIZE, else the number of GPUs."""
    assert find_assignment({}, spawn_index=1, world_size=4).world_size == 4
    assert find_assignment({"WORLD_SIZE": "3"}, spawn_index=1).world_size == 3
    assert find_assignment({}, spawn_index=1, count_gpus=lambda: 2).world_size == 2
    assert find_assignment({}, spawn_index=1, world_size=4).local_rank == 1


def test_spawn_without_a_size() -> None:
    """Under mp.spawn with nothing to count, the error says what to pass."""
    with pytest.raises(UsageError, match="pass world_size"):
        find_assignment({}, spawn_index=1)


def test_by_hand() -> None:
    """RANK and WORLD_SIZE are enough; local rank and host stay unknown."""
    assert find_assignment(BY_HAND) == RankAssignment("by hand", 1, 2)


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
    """Where several launchers set their variables, those of the innermost one count."""
    assert find_assignment(environ, spawn_index=spawn_index).launcher == launcher


def test_arguments_come_first() -> None:
    """Arguments come before every environment, broken ones included."""
    found = find_assignment(ELASTIC, rank=0, world_size=2, master_addr="h", master_port=5)
    assert (found.launcher, found.rank, found.world_size) == ("arguments", 0, 2)
    assert (found.master_addr, found.master_port, found.local_rank) == ("h", 5, None)
    assert find_assignment({"RANK": "1"}, rank=1, world_size=2).rank == 1


def test_arguments_that_repeat_the_launcher_lose_nothing() -> None:
    """Arguments that equal the launcher's numbers keep the local rank that the launcher set."""
    assert find_assignment(ELASTIC, rank=3, world_size=4) == find_assignment(ELASTIC)


def test_one_variable_and_one_argument() -> None:
    """One of rank and world size may come from the environment, the other from an argument."""
    assert find_assignment({"WORLD_SIZE": "4"}, rank=2).rank == 2
    assert find_assignment({"RANK": "2"}, world_size=4).world_size == 4


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
def test_impossible_numbers_are_refused(environ: dict[str, str], arguments: dict[str, int], message: str) -> None:
    """An impossible number is one sentence: what was found, what was expected, what to do."""
    with pytest.raises(UsageError, match=message) as caught:
        find_assignment(environ, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_rank_alone() -> None:
    """The rank alone needs no world size, and the parent of mp.spawn counts as rank 0."""
    assert find_launched_rank({}, spawn_index=3) == 3
    assert find_launched_rank({"WORLD_SIZE": "4"}) == 0
    assert find_launched_rank(ELASTIC) == 3


def test_gpus_have_the_hosts_names() -> None:
    """The same index may be another GPU in another process: the names come from CUDA_VISIBLE_DEVICES."""
    assert name_gpus({}, 2) == ("0", "1")
    assert name_gpus({"CUDA_VISIBLE_DEVICES": "3, 5"}, 2) == ("3", "5")
    assert name_gpus({"CUDA_VISIBLE_DEVICES": "GPU-abc"}, 1) == ("GPU-abc",)
