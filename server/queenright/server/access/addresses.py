"""Addresses: where a host listens, which ones are loopback, and groups of client addresses for limits."""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv6Address, ip_address


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """Return the key of an address for limits: the /64 for IPv6, as one household has that many addresses."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is None:
        return f"{IPv6Address(int(ip) >> 64 << 64)}/64"
    return str(ip)


def address_of(host: str) -> str:
    """Return the address at which a socket listens for a host; the host itself if it has none here."""
    try:
        addresses = socket.getaddrinfo(
            host or None, 0, family_of(host), socket.SOCK_STREAM, 0, socket.AI_PASSIVE
        )
    except OSError:
        return host
    return str(addresses[0][4][0])


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family of a host name or address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
