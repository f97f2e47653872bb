"""Where a rank is: found out without a signal."""

from pathlib import Path

from rollcall.agent.monitoring import stack_collection
from rollcall.agent.monitoring.stack_collection import of_the_program
from rollcall.record import ring
from rollcall.record.on_request import stacks
from rollcall.worker import main as worker_main


def test_frames_of_rollcall_are_left_out(tmp_path: Path) -> None:
    """Below the program, and where it calls a hook; functions without a name say nothing."""
    script = tmp_path / "train.py"
    script.write_text("first\nsecond\n")
    frames = [
        ("/lib/libc.so.6", 0, "0x7ffa257c4f7a"),
        (ring.__file__, 3, "sleep"),
        (str(script), 2, "step"),
        (worker_main.__file__, 4, "_run_script"),
        ("<string>", 1, "<module>"),
    ]
    (frame,) = of_the_program(frames)
    assert (frame.function, frame.line, frame.text) == ("step", 2, "second")


def test_the_main_thread_is_read_of_what_a_rank_writes() -> None:
    """Other threads come before it, and earlier answers too."""
    text = stacks.as_text("Thread 0x1", [("/a.py", 1, "f")]) + stacks.as_text("Current thread 0x2", [("/b.py", 2, "g")])
    assert stacks.parse_main_thread(text) == [("/b.py", 2, "g")]


def test_a_rank_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (found,) = stack_collection.collect({0: 2**22 + 1}, {}).values()
    assert found.frames == []
    assert "py-spy" in found.why_not
