"""Messages between launcher and agent, and the channel that carries them."""

import io
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import (
    Ended,
    Message,
    Note,
    Output,
    RankConnected,
    RankDisconnected,
    Stop,
    UnknownMessage,
)

MESSAGES = st.one_of(
    st.builds(Output, rank=st.integers(0, 9999), stream=st.sampled_from([1, 2]), data=st.binary(max_size=2000)),
    st.builds(Note, text=st.text()),
    st.builds(Stop, signal=st.integers(1, 64), now=st.booleans()),
    st.builds(Ended, st.integers(), st.integers(), st.integers(), st.integers(), st.booleans()),
)


@given(st.lists(MESSAGES))
def test_what_is_sent_is_received(messages: list[Message]) -> None:
    """Any messages, in any order, with any bytes, arrive as they were; then comes the end."""
    pipe = io.BytesIO()
    for message in messages:
        Channel(io.BytesIO(), pipe).send(message)
    channel = Channel(io.BytesIO(pipe.getvalue()), io.BytesIO())
    assert [channel.receive() for _ in messages] == messages
    assert channel.receive() is None


@given(st.lists(MESSAGES, min_size=1), st.data())
def test_a_stream_cut_anywhere_is_an_end(messages: list[Message], data: st.DataObject) -> None:
    """When the other side is killed in mid-sentence, we see the end, never half a message."""
    pipe = io.BytesIO()
    for message in messages:
        Channel(io.BytesIO(), pipe).send(message)
    cut = data.draw(st.integers(0, len(pipe.getvalue()) - 1))
    channel = Channel(io.BytesIO(pipe.getvalue()[:cut]), io.BytesIO())
    received = []
    while (message := channel.receive()) is not None:
        received.append(message)
    assert received == messages[: len(received)]
    assert len(received) < len(messages)


def test_a_message_of_another_version_is_received_by_its_name() -> None:
    """Neither its kind nor its fields need be known here; what follows it is received as ever."""
    lines = b'{"kind": "Later", "size": 3, "x": 1}\nabc{"kind": "Note", "size": 0, "texts": []}\n'
    pipe = io.BytesIO()
    Channel(io.BytesIO(), pipe).send(Note("known"))
    channel = Channel(io.BytesIO(lines + pipe.getvalue()), io.BytesIO())
    assert [channel.receive() for _ in range(3)] == [UnknownMessage("Later"), UnknownMessage("Note"), Note("known")]


def test_messages_are_values() -> None:
    """Equal if kind and fields are; a copy can be changed; in words it can be typed again."""
    closed = RankDisconnected(1, "prompt")
    assert closed == RankDisconnected(1, "prompt")
    assert closed != replace(closed, rank=2)
    assert closed != RankConnected(1, "prompt")
    assert repr(closed) == "RankDisconnected(rank=1, purpose='prompt')"


def test_python_compiles_one_method_for_each() -> None:
    """Every start imports them all."""
    made = {
        name for kind in Message.kinds.values() for name in vars(kind) if name in ("__eq__", "__repr__", "__setattr__")
    }
    assert made == set()
