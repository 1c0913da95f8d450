"""Client addresses: detect loopback, and group addresses for limits."""

from __future__ import annotations

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
