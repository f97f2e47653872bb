"""Used by testing/, which runs a test's body on ranks and reports its failure as pytest does."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="pytest_internals",
    purpose="runs a test on several ranks, with pytest's own reports",
    lost_without="the pytest plugin does not work",
    uses=(
        "_pytest._code:ExceptionInfo",
        "_pytest._io:TerminalWriter",
        "_pytest.config:_prepareconfig",
        "_pytest.python:Function.__init__<_fixtureinfo>",
    ),
    tried_on=("pytest 9.2.0",),
)
