"""Network addresses: loopback, the address that a host listens on, and networks for rate limits."""

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
def get_rate_limit_network(address: str) -> str:
    """Return the network that shares an address's rate limit: for IPv6 its /64, as one household has."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is None:
        return f"{IPv6Address(int(ip) >> 64 << 64)}/64"
    return str(ip)


def resolve_listen_address(host: str) -> str:
    """Return the address that a socket for a host listens on; the host itself if it cannot be resolved."""
    try:
        addresses = socket.getaddrinfo(
            host or None, 0, find_address_family(host), socket.SOCK_STREAM, 0, socket.AI_PASSIVE
        )
    except OSError:
        return host
    return str(addresses[0][4][0])


def find_address_family(host: str) -> socket.AddressFamily:
    """Return the address family of a host name or address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
