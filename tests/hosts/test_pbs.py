"""In a PBS job. No PBS server can be installed here: the job's variables are set as it sets them, ssh is real."""

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.protocol.hosts import Host
from rollcall.transport import pbs
from tests.cluster.sshd import Cluster
from tests.rollcall_command import Result, Runner
from tests.said import said

from .conftest import SUM, lines_of


def run_in_job(rollcall: Runner, hosts: Cluster, nodes: list[str], *words: object, **env: str) -> Result:
    """`rollcall` on the job's first host, as in a job script."""
    nodefile = rollcall.folder / "nodefile"
    nodefile.write_text("\n".join(nodes) + "\n")
    ran = subprocess.run(
        [*hosts[nodes[0]].enter, sys.executable, "-m", "rollcall", *map(str, words)],
        cwd=rollcall.folder,
        env={**rollcall.env, "PBS_NODEFILE": str(nodefile), "PBS_JOBID": "7.server", **env},
        capture_output=True,
        text=True,
        timeout=180,
    )
    return Result(ran.returncode, ran.stdout, ran.stderr)


def test_a_plain_run_uses_all_of_the_job(rollcall: Runner, hosts: Cluster) -> None:
    """Hosts and slots come from the node file: a rank per line, by ssh."""
    rollcall.script(SUM)
    ran = run_in_job(rollcall, hosts, ["h1", "h1", "h2", "h3"], "run", "script.py")
    assert lines_of(ran.out) == ["0 h1 0 0 4 eth0", "1 h1 1 0 4 eth0", "2 h2 0 1 4 eth0", "3 h3 0 2 4 eth0"], ran.err


def test_one_host_needs_no_ssh(rollcall: Runner, hosts: Cluster) -> None:
    """`qsub -I -l select=1`: this host is the job, and as many ranks start as there are lines."""
    rollcall.script("import os; print(os.environ['WORLD_SIZE'])")
    ran = run_in_job(rollcall, hosts, ["h1", "h1", "h1"], "run", "script.py", ROLLCALL_SSH="false")
    assert said(ran.out) == {"3": [0, 1, 2]}, ran.err


def test_pbsdsh_starts_agents_where_ssh_does_not(rollcall: Runner, hosts: Cluster) -> None:
    """Agents that pbsdsh starts have no pipe and no environment of ours: they call back, and prove who they are."""
    rollcall.script(SUM)
    stand_in = rollcall.folder / "bin" / "pbsdsh"
    stand_in.parent.mkdir()
    enter = {name: shlex.join(hosts[name].enter) for name in ("h1", "h2")}
    stand_in.write_text(
        "#!/bin/bash\n"
        '[ "$1" = -n ] && [ "$3" = -- ] || exit 2\n'
        'host=$(sed -n "$(($2 + 1))p" "$PBS_NODEFILE"); shift 3\n'
        f'[ "$host" = h1 ] && exec env -i PATH="$PATH" {enter["h1"]} "$@" </dev/null >/dev/null\n'
        f'exec env -i PATH="$PATH" {enter["h2"]} "$@" </dev/null >/dev/null\n'
    )
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    path = f"{stand_in.parent}:{os.environ['PATH']}"
    ran = run_in_job(
        rollcall, hosts, ["h1", "h2", "h2"], "run", "--env", "A=b", "script.py", ROLLCALL_PBS="pbsdsh", PATH=path
    )
    assert lines_of(ran.out) == ["0 h1 0 0 3 eth0", "1 h2 0 1 3 eth0", "2 h2 1 1 3 eth0"], ran.err
    assert list(rollcall.folder.glob(".rollcall-*")) == []


def test_a_node_file_is_read_as_each_pbs_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full names, a line per rank, hosts in the order of their first line; GPUs count more than lines, -n most."""
    nodefile = tmp_path / "nodes"
    nodefile.write_text("n2.site.org\nn1.site.org\nn2.site.org\n")
    environ = {"PBS_NODEFILE": str(nodefile)}
    assert pbs.hosts(environ, None) == (Host("n2.site.org", 2), Host("n1.site.org", 1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert pbs.hosts(environ, None) == (Host("n2.site.org", 4), Host("n1.site.org", 4))
    assert pbs.hosts(environ, 3) == (Host("n2.site.org", 3), Host("n1.site.org", 3))


@pytest.mark.parametrize("text", [None, "\n"])
def test_a_node_file_without_hosts_is_one_sentence(tmp_path: Path, text: str | None) -> None:
    """Missing or empty: what was found, and what to do."""
    nodefile = tmp_path / "nodes"
    if text is not None:
        nodefile.write_text(text)
    with pytest.raises(UsageError, match="PBS_NODEFILE"):
        pbs.hosts({"PBS_NODEFILE": str(nodefile)}, None)
