"""`rollcall shell` in a real terminal (tmux)."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.rollcall_command import ROLLCALL, Runner, until

pytest.importorskip("IPython")
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here")


class Terminal:
    """A shell; `typed` gives what a line has put on the screen."""

    def __init__(self, runner: Runner, words: str) -> None:
        self._tmux = ["tmux", "-L", f"rollcall-shell-{os.getpid()}"]
        env = {name: value for name, value in runner.env.items() if name not in ("COLUMNS", "LINES")}
        env |= {"TERM": "xterm-256color", "IPYTHONDIR": str(runner.folder / "ipython")}
        command = f"{ROLLCALL[0]} shell {words} --hang-after 1; echo code $?; sleep 60"
        self._run("new-session", "-d", "-x", "150", "-y", "200", command, cwd=runner.folder, env=env)
        self.number = 1
        assert until(lambda: self._is_ready(1), 90), self.screen()

    def screen(self) -> str:
        return self._run("capture-pane", "-p").rstrip()

    def typed(self, *keys: str) -> str:
        """Keys as tmux names them; until the next prompt is there."""
        before = self.screen()
        self.press(*keys, "Enter")
        self.waits_for_prompt()
        return self.screen().removeprefix(before)

    def waits_for_prompt(self) -> None:
        """The next one, by its number."""
        self.number += 1
        assert until(lambda: self._is_ready(self.number)), self.screen()

    def press(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def waits_for(self, text: str) -> str:
        assert until(lambda: re.search(text, self.screen()) is not None), self.screen()
        return self.screen()

    def close(self) -> None:
        self._run("kill-server")

    def _is_ready(self, number: int) -> bool:
        return self.screen().endswith(f"[{number}]:")

    def _run(self, *words: str, **options: object) -> str:
        ran = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
        return str(ran.stdout)


@pytest.fixture
def terminal(rollcall: Runner, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    found = Terminal(rollcall, getattr(request, "param", "-n 3"))
    try:
        yield found
    finally:
        found.close()


@needs_tmux
def test_a_session(terminal: Terminal, rollcall: Runner) -> None:
    """Equal answers are folded, others shown by rank; variables stay, also when a line that hangs is explained and
    cancelled; completion knows the ranks' names; Ctrl-D ends ranks and shell with 0."""
    assert "0-2 │ 2" in terminal.typed("1 + 1")
    assert re.findall(r"(\d) │ (\d+)", terminal.typed("rank + 10")) == [("0", "10"), ("1", "11"), ("2", "12")]
    assert "0-2 │ tensor([3.])" in terminal.typed("x = torch.ones(1); dist.all_reduce(x); x")
    failed = terminal.typed("1 / (rank - 1)")
    assert re.search(r"  1 │ ZeroDivisionError", failed)
    assert re.search(r"  1 │     1 / \(rank - 1\)", failed)
    assert "0-2 │ x: Tensor [1] torch.float32" in terminal.typed("%who")
    terminal.press("x.nume", "Tab")
    terminal.waits_for(r"x\.numel")
    terminal.press("C-u")
    terminal.press("def f():", "Enter", "return 7", "Enter")
    terminal.typed("")
    assert "1 │ 7" in terminal.typed("%rank 1 f()")
    assert re.search(r"on rank \d to .* on rank \d", terminal.typed("%time dist.barrier()"))
    assert f"in-{terminal.number}.py" in terminal.typed("%time nothing")
    assert "0 │ there is nothing called all_reduc" in terminal.typed("%doc all_reduc")
    terminal.press("dist.barrier() if rank else None", "Enter")
    said = terminal.waits_for(r"ranks 1-2: in-\d+.py:1 in <module>")
    assert "rank 0 is stuck, without using the processor, at prompt.py:1" in said
    terminal.press("C-c")
    assert "the ranks keep their variables, and have a new group" in terminal.waits_for("cancelled")
    terminal.waits_for_prompt()
    assert "0-2 │ tensor([9.])" in terminal.typed("dist.all_reduce(x); x")
    terminal.press("C-d")
    assert "code 0" in terminal.waits_for(r"code \d+")
    assert until(lambda: not [each for each in rollcall.processes() if "rollcall.shell" in each.cmdline()])


@needs_tmux
@pytest.mark.parametrize("terminal", ["-n 1 --virtual-hosts 2"], indirect=True)
def test_a_session_on_hosts(terminal: Terminal, rollcall: Runner) -> None:
    """All that it does goes by way of agents and launcher: answers, tracebacks with their line, %explain,
    taking back; Ctrl-D leaves no process on any host."""
    if "only loopback addresses" in terminal.screen():
        pytest.skip("no namespaces here: virtual hosts are loopback addresses")
    names = terminal.typed("import socket; x = torch.ones(1); dist.all_reduce(x); (socket.gethostname(), x)")
    assert re.findall(r"(\d) │ \('(host-\d)', tensor\(\[2\.\]\)\)", names) == [("0", "host-1"), ("1", "host-2")]
    assert re.search(r"  1 │     1 / \(rank - 1\)", terminal.typed("1 / (rank - 1)"))
    terminal.press("dist.barrier() if rank else None", "Enter")
    terminal.waits_for(r"verdict.* look at rank 0")
    terminal.press("C-c")
    terminal.waits_for("cancelled")
    terminal.waits_for_prompt()
    assert "1 │ tensor([2.])" in terminal.typed("%rank 1 x")
    assert re.search(r"2 of 2 ranks recorded.*no finding so far", terminal.typed("%explain"), re.DOTALL)
    assert "0-1 │ tensor([4.])" in terminal.typed("dist.all_reduce(x); x")
    terminal.press("C-d")
    assert "code 0" in terminal.waits_for(r"code \d+")
    assert until(lambda: not [each for each in rollcall.processes() if "rollcall" in each.cmdline()])


def test_without_a_terminal_it_says_so(rollcall: Runner) -> None:
    refused = rollcall("shell", "-n", 2)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "rollcall: rollcall shell needs a terminal: for a script, use `rollcall run`\n"


@pytest.mark.parametrize(
    ("words", "said"), [("-n 0", "a shell on 0 ranks is not possible"), ("--hang-after 0", "is not a time to wait")]
)
def test_what_cannot_work_is_one_sentence(rollcall: Runner, words: str, said: str) -> None:
    refused = rollcall("shell", *words.split())
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert said in refused.err
