"""What the commands have in common."""

import sys

import pytest

from rollcall.cli.app import command


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "run --nope x.py",
            "no such option: --nope (Possible options: --nnodes, --nodes, --role); `rollcall run --help`",
        ),
        ("run", "missing argument 'SCRIPT'; `rollcall run --help`"),
        ("explain --attempt x", "invalid value for '--attempt'"),
        ("report a b", "got unexpected extra argument(s) (b); `rollcall report --help`"),
        ("expl", "no such command 'expl'. Did you mean 'explain', 'export'?; `rollcall --help`"),
        ("run --signals-to-handle SIGFOO --dry-run -m timeit", "SIGFOO"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_sentence(
    typed: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rollcall", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        command()
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert err.startswith("rollcall: ")
    assert said in err
    assert err.count("\n") == 1
