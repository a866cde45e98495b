"""The addresses at which other hosts may reach this one, most likely first.

They obey the variables that users set for Gloo and NCCL: ``GLOO_SOCKET_IFNAME`` (a list of names) and
``NCCL_SOCKET_IFNAME`` (a list of prefixes; ``=`` in front makes them exact, ``^`` excludes; source: NCCL's
documentation of its environment variables). No name of this host is looked up: a resolver may take seconds to fail.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

_SIOCGIFADDR = 0x8915
"""ioctl of linux/sockios.h: the IPv4 address of an interface."""

_IFREQ = struct.Struct("16s2xH20x")
_MOST = 16

# Reserved for documentation (RFC 5737, RFC 3849): the way to them is the default route, and nothing is sent.
_ANYWHERE = ("192.0.2.1", "2001:db8::1")

_IPV6_TABLE = Path("/proc/net/if_inet6")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def own_addresses() -> tuple[str, ...]:
    """Numeric IPv4 and IPv6 addresses: on the way to ``MASTER_ADDR``, on the default route, of the other interfaces.

    Only those of the interfaces that the user has named, where that was done. May include loopback addresses.
    """
    wanted = _wanted()
    interfaces = list(_interface_addresses())
    if wanted is not None:
        return tuple(address for name, address in interfaces if wanted(name))[:_MOST]
    targets = [os.environ.get("MASTER_ADDR", ""), *_ANYWHERE]
    routes = [address for target in targets if target for address in _towards(target)]
    return tuple(dict.fromkeys([*routes, *(address for _, address in interfaces)]))[:_MOST]


def same_host_mark() -> str:
    """Equal for two processes that run under one kernel since one boot; empty where that cannot be told."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def is_loopback(address: str) -> bool:
    """Whether an address leads to the asking host itself, whichever that is."""
    return ip_address(address).is_loopback


def _wanted() -> Callable[[str], bool] | None:
    """The user's choice of interfaces by name; None if there is none."""
    if exact := _names(os.environ.get("GLOO_SOCKET_IFNAME", "")):
        return lambda name: name in exact
    nccl = os.environ.get("NCCL_SOCKET_IFNAME", "").strip()
    names = _names(nccl.lstrip("=^"))
    if not names:
        return None
    if nccl.startswith("="):
        return lambda name: name in names
    if nccl.startswith("^"):
        return lambda name: not name.startswith(names)
    return lambda name: name.startswith(names)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _towards(target: str) -> Iterator[str]:
    """The own addresses from which packets to a host leave; a UDP socket that is connected sends none."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                own = str(probe.getsockname()[0])
        except OSError:
            continue
        # A link-local address means nothing without the name of an interface on the other host.
        if not ip_address(own).is_link_local:
            yield own


def _interface_addresses() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = _IFREQ.pack(name.encode(), socket.AF_INET)
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # the interface has no IPv4 address
            yield name, socket.inet_ntoa(answer[20:24])
    yield from _ipv6_addresses()


def _ipv6_addresses() -> Iterator[tuple[str, str]]:
    try:
        lines = _IPV6_TABLE.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        digits, _index, _prefix, _scope, _flags, name = line.split()
        address = ip_address(bytes.fromhex(digits))
        if not address.is_link_local:
            yield name, str(address)
