"""The pytest plugin: one run of pytest on small test files, in new processes: the plugin keeps a server in this one."""

import re

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import os, time, pytest, torch, torch.distributed as dist
"""

PASSING = """
@pytest.fixture
def three(): return 3

@pytest.mark.ranks(2)
@pytest.mark.parametrize("x", [1, 2])
def test_sum(x, three):
    dist.init_process_group("gloo")
    total = torch.tensor([x * three])
    dist.all_reduce(total)
    assert total.item() == 2 * x * 3

class TestMethods:
    @pytest.mark.ranks(3)
    def test_world(self, world, tmp_path):
        (tmp_path / str(world.rank)).touch()
        world.barrier()
        assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]
        assert world.size == 3

def test_plain():
    assert "RANK" not in os.environ
"""

FAILING = """
@pytest.mark.ranks(3)
def test_bad():
    dist.init_process_group("gloo")
    print("printed by", dist.get_rank())
    if dist.get_rank() == 1:
        assert [1, dist.get_rank()] == [1, 5]
    dist.barrier()

@pytest.mark.ranks(2, timeout=1)
def test_hang():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(60)

@pytest.mark.ranks(2)
def test_killed():
    os.kill(os.getpid(), 9)
"""

NEITHER = """
@pytest.mark.ranks(2)
def test_skip(): pytest.skip("not today")

@pytest.mark.ranks(2)
@pytest.mark.xfail(strict=True)
def test_xfail(): assert False
"""

WARNING = """
@pytest.mark.ranks(1)
def test_warns():
    import warnings
    warnings.warn("careful")
"""

WRONG = """
@pytest.fixture
def lock():
    import threading
    return threading.Lock()

@pytest.mark.ranks(2)
def test_lock(lock): pass

@pytest.mark.ranks("two")
def test_mark(): pass

def test_no_ranks(world): pass
"""


def outcomes(result: pytest.RunResult, file: str) -> list[str]:
    return re.findall(rf"^([A-Z]+) {file}\.py\b", result.stdout.str(), re.M)


def test_tests_run_on_ranks(pytester: pytest.Pytester) -> None:
    """Passing: parametrisation, function fixtures, classes, tmp_path shared by all ranks, and the world fixture.
    Failing: pytest's details of the assertion, the marked line, and the rank's output in a section; after the mark's
    timeout each rank's stack, innermost frame first; the signal that killed a rank. A skip or xfail in a rank is the
    test's. Wrong use is explained: a fixture that cannot be pickled, a mark without a number, `world` without ranks.
    filterwarnings of the ini file holds in the ranks: a warning is an error. Under xdist, each worker has a server of
    its own; the tests of one file stay with one worker, so that their reports come in order."""
    pytester.plugins = []
    pytester.makeini("[pytest]\nfilterwarnings = error")
    texts = {"failing": FAILING, "neither": NEITHER, "passing": PASSING, "warning": WARNING, "wrong": WRONG}
    pytester.makepyfile(**{f"test_{name}": HEAD + text for name, text in texts.items()})
    result = pytester.runpytest_subprocess("-rA", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile")
    result.assert_outcomes(passed=4, failed=6, errors=1, skipped=1, xfailed=1)
    assert outcomes(result, "test_passing") == ["PASSED"] * 4
    assert outcomes(result, "test_failing") == ["FAILED"] * 3
    assert outcomes(result, "test_warning") == ["FAILED"]
    assert outcomes(result, "test_neither") == ["XFAIL"]  # a skip is listed with its reason alone
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 3: AssertionError: assert [[]1, 1] == [[]1, 5]",
            ">*assert [[]1, dist.get_rank()] == [[]1, 5]",
            "E*assert [[]1, 1] == [[]1, 5]",
            "E*At index 1 diff: 1 != 5",
            "*Captured rank 1 call*",
            "printed by 1",
            "2 of 2 ranks were still running after 1 s; their stacks:",
            "rank 0:",
            "*in barrier",
            "*in test_hang",
            "rank 1:",
            "rank * was killed by SIGKILL: often the out-of-memory killer",
        ]
    )
    text = result.stdout.str()
    bad = re.search(r"^_+ test_bad _+$(.*?)^_+ test_", text, re.M | re.S)  # what comes next is of either worker
    assert bad is not None
    assert "rollcall/testing" not in bad[1]
    assert "the fixture 'lock' cannot be sent to the ranks" in text
    assert "takes a number of ranks" in text
    assert "mark test_no_ranks with @pytest.mark.ranks(2)" in text
    assert "UserWarning: careful" in text
