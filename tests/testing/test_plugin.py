"""The pytest plugin: each test runs pytest on a small test file."""

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import os, time, pytest, torch, torch.distributed as dist
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    # Each test starts a new pytest process: the plugin keeps a server in this one.
    pytester.plugins = []
    return pytester


def run(suite: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    suite.makepyfile(HEAD + text)
    return suite.runpytest_subprocess("-p", "no:cacheprovider", *options)


def test_tests_pass_on_ranks(suite: pytest.Pytester) -> None:
    """Parametrisation, function fixtures, classes, tmp_path shared by all ranks, and the world fixture."""
    result = run(
        suite,
        """
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
""",
    )
    result.assert_outcomes(passed=4)


def test_the_failing_ranks_assertion_is_shown(suite: pytest.Pytester) -> None:
    """The failure has pytest's details of the assertion, the marked line, and the rank's output in a section."""
    result = run(
        suite,
        """
@pytest.mark.ranks(3)
def test_bad():
    dist.init_process_group("gloo")
    print("printed by", dist.get_rank())
    if dist.get_rank() == 1:
        assert [1, dist.get_rank()] == [1, 5]
    dist.barrier()
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 3: AssertionError: assert [[]1, 1] == [[]1, 5]",
            ">*assert [[]1, dist.get_rank()] == [[]1, 5]",
            "E*assert [[]1, 1] == [[]1, 5]",
            "E*At index 1 diff: 1 != 5",
            "*Captured rank 1 call*",
            "printed by 1",
        ]
    )
    assert "rollcall/testing" not in result.stdout.str()


def test_a_hang_ends_after_the_marks_timeout_with_stacks(suite: pytest.Pytester) -> None:
    """Each rank's stack is shown, innermost frame first."""
    result = run(
        suite,
        """
@pytest.mark.ranks(2, timeout=1)
def test_hang():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.barrier()
    time.sleep(60)
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "2 of 2 ranks were still running after 1 s; their stacks:",
            "rank 0:",
            "*in barrier",
            "*in test_hang",
            "rank 1:",
        ]
    )


def test_skips_expected_failures_and_deaths(suite: pytest.Pytester) -> None:
    """A skip or xfail in a rank is the test's; a killed rank fails the test, and the failure names the signal."""
    result = run(
        suite,
        """
@pytest.mark.ranks(2)
def test_skip(): pytest.skip("not today")

@pytest.mark.ranks(2)
@pytest.mark.xfail(strict=True)
def test_xfail(): assert False

@pytest.mark.ranks(2)
def test_killed():
    os.kill(os.getpid(), 9)
""",
    )
    result.assert_outcomes(skipped=1, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["rank * was killed by SIGKILL: often the out-of-memory killer"])


def test_warnings_are_errors_in_ranks_too(suite: pytest.Pytester) -> None:
    """The setting filterwarnings of the ini file holds in the ranks."""
    suite.makeini("[pytest]\nfilterwarnings = error")
    result = run(suite, '@pytest.mark.ranks(1)\ndef test_warns():\n    import warnings; warnings.warn("careful")\n')
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UserWarning: careful*"])


def test_it_works_under_xdist(suite: pytest.Pytester) -> None:
    """-n 2: each worker has a server of its own."""
    text = "\n".join(f"@pytest.mark.ranks(2)\ndef test_{i}(world): assert world.size == 2\n" for i in range(4))
    run(suite, text, "-n", "2").assert_outcomes(passed=4)


def test_wrong_use_is_explained(suite: pytest.Pytester) -> None:
    """A fixture that cannot be pickled, a mark without a number and `world` without ranks are named in the error."""
    result = run(
        suite,
        """
@pytest.fixture
def lock():
    import threading
    return threading.Lock()

@pytest.mark.ranks(2)
def test_lock(lock): pass

@pytest.mark.ranks("two")
def test_mark(): pass

def test_no_ranks(world): pass
""",
    )
    text = result.stdout.str()
    assert "the fixture 'lock' cannot be sent to the ranks" in text
    assert "takes a number of ranks" in text
    assert "mark test_no_ranks with @pytest.mark.ranks(2)" in text
    assert "passed" not in text
