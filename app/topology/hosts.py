"""Where workers may be: the configured hosts, and the host in an address. Pure.

The API opens connections to what a worker says of itself, so a worker may name only hosts that an
operator has listed. A listed name is trusted with whatever it resolves to; a name that is not
listed is refused without resolving it, also where its address would be in a listed network.
"""

import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

from app.errors import ErrorCode, FieldError, NexusError

VARIABLE: Final = "NEXUSKV_WORKER_HOSTS"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?", re.ASCII)
_AUTHORITY: Final = re.compile(
    r"(?:https?://)?(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,252})|\[(?P<v6>[0-9A-Fa-f:.]{2,45})\])"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)
_MAX_PORT: Final = 65_535


class HostAllowList:
    """Names, addresses and networks (CIDR). Raises ValueError for an entry that is none of them."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            self._add(entry.strip().lower())

    def allows(self, host: str) -> bool:
        """Whether a host (a name, or an address without brackets) is listed."""
        address = _address(host)
        if address is None:
            return host.lower() in self._names
        return any(address in network for network in self._networks)

    def _add(self, entry: str) -> None:
        try:
            self._networks.append(ip_network(entry))
        except ValueError as error:
            if "/" in entry or not _NAME.fullmatch(entry):
                raise ValueError(
                    f"{VARIABLE}: {entry!r} is not a host name, an address or a network: {error}"
                ) from None
            self._names.add(entry)


def check_host(field: str, address: str, allowed: HostAllowList) -> None:
    """Raise INVALID_FIELD unless `address` is a URL or host:port that names a host and a port;
    WORKER_HOST_NOT_ALLOWED unless the host is listed. `field` is the address's place in the body.
    """
    found = _AUTHORITY.fullmatch(address)
    port = found["port"] if found else None
    if found is None or not port or not 0 < int(port) <= _MAX_PORT or not _is_host(found):
        finding = FieldError(
            f"/{field}", ErrorCode.INVALID_FIELD, "must name a host and a port from 1 to 65535"
        )
        raise NexusError(
            ErrorCode.INVALID_FIELD, f"{finding.pointer} {finding.detail}", errors=[finding]
        )
    host = found["name"] or found["v6"]
    if not allowed.allows(host):
        raise NexusError(
            ErrorCode.WORKER_HOST_NOT_ALLOWED,
            f"The host {host} of /{field} is not among those where workers may be; an operator"
            f" adds it, its address or its network to {VARIABLE} of the API",
        )


def _is_host(found: re.Match[str]) -> bool:
    return found["v6"] is None or _address(found["v6"]) is not None


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """None for a name. An IPv4 address in IPv6 form is the IPv4 address."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
