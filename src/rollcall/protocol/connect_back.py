"""What launcher and agent share where the agent connects back to the launcher, because a scheduler has started it."""

import socket
import struct

# Variables in the environment of the agent: where the launcher listens, the run's secret, and which variable tells the
# agent the name of its host.
ADDRESSES, SECRET, NAME_FROM = "ROLLCALL_CALL", "ROLLCALL_SECRET", "ROLLCALL_NAME_FROM"
TIMEOUT_S = 10


def set_timeout(connection: socket.socket, seconds: int) -> None:
    """By the kernel: a timeout of Python's would make the file non-blocking for those who read it later."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
