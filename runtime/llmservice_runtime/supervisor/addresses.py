"""Addresses on which vLLM listens, and addresses at which clients reach the pod.

vLLM opens one socket, of the family of --host. `::` covers IPv6 and, by IPv4-mapped addresses, IPv4. The operator
renders it; on a node without IPv6 it cannot be opened, and the supervisor replaces it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

EVERY = "::"
EVERY_IPV4 = "0.0.0.0"
_FAR = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""An address of each family on the default route (reserved for documentation)."""
_SIOCGIFADDR = 0x8915
_CONNECT_SECONDS = 5.0
_TRUSTED = "127.0.0.1,::1"
"""uvicorn's default of trusted proxies, without FORWARDED_ALLOW_IPS."""


def only_ipv4(host: str) -> str:
    """Why a socket on this host would not accept IPv4 connections; empty if it does, or need not."""
    if host != EVERY:
        return ""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            is_single = tried.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            tried.bind((EVERY, 0))
    except OSError as error:
        return f"this node has no IPv6 ({error.strerror})"
    return "net.ipv6.bindv6only is 1 here" if is_single else ""


def of_pod() -> tuple[str, ...]:
    """The pod's own addresses, at most one per family; empty without a default route. No packet is sent."""
    return tuple(address for family, far in _FAR if (address := _source(family, far)))


def _source(family: socket.AddressFamily, far: str) -> str:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((far, 9))
        found = str(asking.getsockname()[0])
        return "" if ipaddress.ip_address(found.partition("%")[0]).is_loopback else found
    return ""


def interface_of(address: str) -> str:
    """The network interface that has this address; empty where none does."""
    for _, name in socket.if_nameindex():
        if address in (_ipv4_of(name), *_ipv6_of(name)):
            return name
    return ""


def of_interface(name: str) -> str:
    """Its address, an IPv4 one if it has any; empty where there is no such interface, or it has no address."""
    local = (each for each in _ipv6_of(name) if not ipaddress.IPv6Address(each).is_link_local)
    return _ipv4_of(name) or next(local, "")


def _ipv4_of(name: str) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
        return socket.inet_ntoa(answer[20:24])
    return ""


def _ipv6_of(name: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[-1] == name:
                yield str(ipaddress.IPv6Address(int(fields[0], 16)))


async def refused(port: int, addresses: Sequence[str]) -> tuple[str, ...]:
    """Addresses on which nothing listens. One without an answer is not included: a proxy in the pod may hold it."""
    found = await asyncio.gather(*(_is_refused(address, port) for address in addresses))
    return tuple(address for address, is_one in zip(addresses, found, strict=True) if is_one)


async def _is_refused(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), _CONNECT_SECONDS)
    except ConnectionRefusedError:
        return True
    except (asyncio.TimeoutError, OSError):  # noqa: UP041 - another class before Python 3.11
        return False
    writer.close()
    return False


def trusted_proxies(given: str | None) -> str:
    """FORWARDED_ALLOW_IPS for a socket that sees IPv4 addresses as IPv6: each is added in the mapped form."""
    proxies = [proxy.strip() for proxy in (_TRUSTED if given is None else given).split(",")]
    return ",".join([*proxies, *(mapped for proxy in proxies for mapped in _mapped(proxy) if mapped not in proxies)])


def _mapped(proxy: str) -> Iterator[str]:
    """The mapped form of an IPv4 address or network; nothing for others."""
    with contextlib.suppress(ValueError):
        network = ipaddress.IPv4Network(proxy)
        yield f"::ffff:{network.network_address}" + (f"/{96 + network.prefixlen}" if "/" in proxy else "")
