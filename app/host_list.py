"""Lists of hosts that an operator wrote: names, addresses and networks. Pure.

A listed name is trusted with whatever it resolves to; a name that is not listed is refused without
resolving it, also where its address would be in a listed network.
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

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?", re.ASCII)
MAX_PORT: Final = 65_535


class HostAllowList:
    """Names, addresses and networks (CIDR). Raises ValueError for an entry that is none of them.

    `variable` is where an operator wrote them.
    """

    def __init__(self, entries: Iterable[str], variable: str) -> None:
        self.variable = variable
        self._names: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            self._add(entry.strip().lower())

    def allows(self, host: str) -> bool:
        """Whether a host (a name, or an address without brackets) is listed."""
        address = address_of(host)
        if address is None:
            return host.lower() in self._names
        return any(address in network for network in self._networks)

    def _add(self, entry: str) -> None:
        try:
            self._networks.append(ip_network(entry))
        except ValueError as error:
            if "/" in entry or not _NAME.fullmatch(entry):
                raise ValueError(
                    f"{self.variable}: {entry!r} is not a host name, an address or a network:"
                    f" {error}"
                ) from None
            self._names.add(entry)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """None for a name. An IPv4 address in IPv6 form is the IPv4 address."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
