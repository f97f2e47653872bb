"""Fixtures of the tests of explain."""

import pytest

from rollcall.explain import checks
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding


@pytest.fixture(autouse=True)
def checks_that_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that fails makes the test fail, in place of a sentence for the user."""

    def find(evidence: Evidence) -> tuple[list[Finding], list[str]]:
        return [finding for check in checks.CHECKS for finding in check(evidence)], []

    monkeypatch.setattr(checks, "find", find)
