"""The pytest plugin: two runs of pytest on small test files. Each is a new process: the plugin keeps a server in this
one."""

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


def run(pytester: pytest.Pytester, *options: str, **files: str) -> pytest.RunResult:
    pytester.plugins = []
    pytester.makepyfile(**{name: HEAD + text for name, text in files.items()})
    return pytester.runpytest_subprocess("-rA", "-p", "no:cacheprovider", *options)


def outcomes(result: pytest.RunResult, file: str) -> list[str]:
    return re.findall(rf"^([A-Z]+) {file}\.py\b", result.stdout.str(), re.M)


def test_tests_run_on_ranks(pytester: pytest.Pytester) -> None:
    """Passing: parametrisation, function fixtures, classes, tmp_path shared by all ranks, and the world fixture.
    Failing: pytest's details of the assertion, the marked line, and the rank's output in a section; after the mark's
    timeout each rank's stack, innermost frame first; the signal that killed a rank. A skip or xfail in a rank is the
    test's. Wrong use is explained: a fixture that cannot be pickled, a mark without a number, `world` without ranks."""
    result = run(pytester, test_failing=FAILING, test_neither=NEITHER, test_passing=PASSING, test_wrong=WRONG)
    result.assert_outcomes(passed=4, failed=5, errors=1, skipped=1, xfailed=1)
    assert outcomes(result, "test_passing") == ["PASSED"] * 4
    assert outcomes(result, "test_failing") == ["FAILED"] * 3
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
    assert "rollcall/testing" not in text.partition(" test_bad ")[2].partition(" test_hang ")[0]
    assert "the fixture 'lock' cannot be sent to the ranks" in text
    assert "takes a number of ranks" in text
    assert "mark test_no_ranks with @pytest.mark.ranks(2)" in text


def test_it_works_under_xdist(pytester: pytest.Pytester) -> None:
    """-n 2: each worker has a server of its own. filterwarnings of the ini file holds in the ranks: a warning is an
    error."""
    pytester.makeini("[pytest]\nfilterwarnings = error")
    worlds = "\n".join(f"@pytest.mark.ranks(2)\ndef test_{i}(world): assert world.size == 2\n" for i in range(4))
    warns = '@pytest.mark.ranks(1)\ndef test_warns():\n    import warnings; warnings.warn("careful")\n'
    result = run(pytester, "-n", "2", test_worlds=worlds, test_warnings=warns)
    result.assert_outcomes(passed=4, failed=1)
    assert outcomes(result, "test_warnings") == ["FAILED"]
    result.stdout.fnmatch_lines(["*UserWarning: careful*"])
