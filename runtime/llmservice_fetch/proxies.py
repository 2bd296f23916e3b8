"""Which proxy an address has: NO_PROXY means the same to every client.

Clients read it differently: Python's standard library knows no networks (10.0.0.0/8) and no `*.`, reqwest (hf_xet,
obstore) no `*.`, no brackets and no ports. Here every form is understood; reqwest gets the form that it reads.
"""

from __future__ import annotations

import contextlib
import ipaddress
import urllib.parse
import urllib.request
from collections.abc import MutableMapping

_NAMES = ("NO_PROXY", "no_proxy")
_ODD = ' "<>\\^`{|}'
"""What no host contains."""


class InvalidProxy(OSError):
    """A proxy's variable is not a URL of a proxy."""


def prepare(environ: MutableMapping[str, str]) -> None:
    """Rewrite NO_PROXY for clients that read it themselves; before the first of them is made."""
    for name in _NAMES:
        if given := environ.get(name):
            environ[name] = ",".join(map(_plain, _entries(given)))


def proxy_of(url: str) -> str | None:
    """The proxy for a URL by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; None: direct.

    InvalidProxy where it is not the URL of one; its message names the variable, not the value, which may hold a
    password.
    """
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.netloc) or _is_excepted(parts, proxies.get("no", "")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _is_valid(proxy):
        name = "ALL_PROXY" if not proxies.get(parts.scheme) else f"{parts.scheme.upper()}_PROXY"
        raise InvalidProxy(f"{name} is not the URL of an HTTP proxy, such as http://HOST:PORT")
    return proxy


def _is_valid(proxy: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(proxy)
        host = parts.hostname or ""
        return parts.scheme in ("http", "https") and bool(host) and (parts.port or 1) > 0 and not set(host) & set(_ODD)
    except ValueError:
        return False


def _entries(no_proxy: str) -> list[str]:
    return [entry for part in no_proxy.split(",") if (entry := part.strip())]


def _plain(entry: str) -> str:
    """`*.a` as .a, and [::1] as ::1."""
    if entry.startswith("[") and entry.endswith("]"):
        return entry[1:-1]
    return entry.removeprefix("*") if entry.startswith("*.") else entry


def _is_excepted(parts: urllib.parse.SplitResult, no_proxy: str) -> bool:
    host = (parts.hostname or "").rstrip(".")
    return any(_covers(_plain(entry).lower(), host, parts.netloc) for entry in _entries(no_proxy))


def _covers(entry: str, host: str, netloc: str) -> bool:
    """Whether an entry covers a host: everything, an address or a network, a name and those below it, with a port."""
    if entry in ("*", host, netloc.rpartition("@")[2].lower()):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    return host.endswith("." + entry.lstrip(".")) or host == entry.lstrip(".")
