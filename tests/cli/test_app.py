"""The command line itself."""

import subprocess
import sys


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_imports_no_torch() -> None:
    """`rollcall --help` and `import rollcall` stay light: torch, numpy and pydantic are not loaded."""
    heavy = "print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    assert python(f"import sys, rollcall; {heavy}").strip() == "[]"
    show = "import sys\nsys.argv = ['rollcall', '--help']\nfrom rollcall.__main__ import main\n"
    shown = python(f"{show}try: main()\nexcept SystemExit: {heavy}")
    assert shown.strip().endswith("[]")
    assert "runs" in shown


def test_help_of_run_has_examples_and_torchruns_names() -> None:
    """Every option that torchrun users know is listed, with examples."""
    shown = subprocess.run(
        [sys.executable, "-m", "rollcall", "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "PATH": "", "NO_COLOR": "1"},
    ).stdout
    for name in (
        "--nproc-per-node", "--standalone", "--nnodes", "--node-rank", "--master-addr", "--master-port",
        "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--rdzv-backend", "--max-restarts", "--module",
        "--no-python", "--log-dir", "--tee",
        "--redirects", "--local-ranks-filter", "--role", "--show", "--start", "--preload", "--timeout", "--dry-run",
    ):  # fmt: skip
        assert name in shown, name
    assert "rollcall run -n 4 train.py" in shown


def test_every_public_name_is_there() -> None:
    """What `__all__` promises can be imported."""
    import rollcall

    for name in rollcall.__all__:
        assert getattr(rollcall, name) is not None
    assert set(rollcall.__all__) == set(dir(rollcall))
