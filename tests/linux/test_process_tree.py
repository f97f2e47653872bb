"""What is said of processes that were ended."""

from rollcall.linux.process_tree import in_words


def test_equal_commands_are_named_once() -> None:
    assert in_words({7: "sleep 300", 8: "sleep 300", 9: "cat"}) == "sleep 300 (pid 7, 8), cat (pid 9)"


def test_a_line_stays_short() -> None:
    """Of many commands the first five, and of a long one its beginning."""
    words = in_words({number: f"command {number} {'long ' * 50}" for number in range(20)})
    assert words.endswith(", 15 other commands")
    assert len(words) < 700
