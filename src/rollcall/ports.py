"""Finds free ports, and opens sockets that reserve them."""

import errno
import os
import socket
from typing import TYPE_CHECKING

from rollcall.errors import UsageError

if TYPE_CHECKING:
    import psutil

EVERYWHERE = ""  # as a host: listen on every address of this host


def listen(host: str = "localhost", port: int = 0) -> socket.socket:
    """A listening socket; port 0 takes any free port.

    Pass the socket itself to the code that needs the port: if the socket is closed and only its number is
    passed on, another process may take the port in between.
    """
    if not 0 <= port < 2**16:
        raise UsageError(f"port {port} does not exist: use a number from 1 to 65535, or 0 for any free port")
    family, address = resolve(host)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of an earlier run may be in TIME_WAIT for a minute, and must not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise UsageError(_why_not(error, host, port)) from error
    return listener


def resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """The family and numeric address of a host, IPv4 first.

    IPv6 sockets show IPv4 addresses as `::ffff:127.0.0.1`. Torch looks up a name for each of those, which takes
    seconds where no DNS server answers.
    """
    if host == EVERYWHERE:
        return socket.AF_INET, "0.0.0.0"
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"host {host!r} has no address here: correct the name, or use its number") from error
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, str(address[0])


def is_free_port(port: int, host: str = "localhost") -> bool:
    """Whether a server could listen on this port now."""
    if not 0 < port < 2**16:
        raise UsageError(f"port {port} does not exist: use a number from 1 to 65535")
    try:
        listen(host, port).close()
    except UsageError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise
    return True


def find_free_port(host: str = "localhost", start: int | None = None) -> int:
    """A port that is free now: any, or the first from `start` on. It is not reserved; `listen` reserves."""
    if start is None:
        with listen(host) as listener:
            return int(listener.getsockname()[1])
    for port in range(start, 2**16):
        if is_free_port(port, host):
            return port
    raise UsageError(f"no port from {start} to 65535 is free on {host}: start lower")


def find_holder(port: int) -> "psutil.Process | None":
    """The process that listens on a port of this host, if this user may see it."""
    import psutil  # here: only errors need it, and it would delay every start

    try:
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and getattr(connection.laddr, "port", None) == port and connection.pid:
                return psutil.Process(connection.pid)
    except psutil.Error:
        pass
    return None


def _why_not(error: OSError, host: str, port: int) -> str:
    where = f"port {port} on {host or 'this host'}"
    if error.errno == errno.EADDRINUSE:
        holder = find_holder(port)
        by = f"process {holder.pid} ({holder.name()})" if holder else "another process"
        return f"{where} is in use by {by}: end it, or use another port"
    if error.errno == errno.EACCES:
        return f"{where} needs root rights: use a port from 1024 on"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this host ({socket.gethostname()}): use one that is"
    return f"{where} cannot be used ({os.strerror(error.errno or 0)}): use another"
