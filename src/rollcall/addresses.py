"""The addresses and network interfaces of this host."""

import ipaddress
import os
import socket
from collections.abc import Mapping

from rollcall.ports import EVERYWHERE


def every_address() -> str:
    """The address to listen on: all of IPv4, if there are any. With IPv6, torch looks up the name of each peer."""
    has_ipv4 = any(":" not in address and not address.startswith("127.") for address, _ in _interfaces())
    return EVERYWHERE if has_ipv4 or not any(":" in address for address, _ in _interfaces()) else "::"


def own_addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """The addresses of this host, with their interfaces: that of the ssh connection, then networks, then loopback."""
    # client address, client port, server address, server port
    by_ssh = environ.get("SSH_CONNECTION", "").split()[2:3]
    found = {address: name for address, name in _interfaces() if not ipaddress.ip_address(address).is_link_local}
    ordered = sorted(found, key=lambda a: (a not in by_ssh, ipaddress.ip_address(a).is_loopback, ":" in a))
    return {address: found[address] for address in ordered}


def interface_of(address: str) -> str | None:
    """The interface that has this address, by name, as gloo and NCCL want it."""
    return next((name for own, name in _interfaces() if own == address), None)


def interface_env(interface: str | None, forced: bool) -> dict[str, str]:
    """The variables that keep gloo and NCCL from choosing by themselves. The user's own stay, unless forced."""
    if not interface:
        return {}
    names = {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: value for name, value in names.items() if forced or name not in os.environ}


def _interfaces() -> list[tuple[str, str]]:
    import psutil  # here: it would delay the import of torch

    families = (socket.AF_INET, socket.AF_INET6)
    return [
        (entry.address.partition("%")[0], name)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    ]
