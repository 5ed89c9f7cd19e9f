"""Where workers may be: the host in an address, and whether it is listed. Pure.

The API opens connections to what a worker says of itself, so a worker may name only hosts that an
operator has listed.
"""

import re
from typing import Final

from app.errors import ErrorCode, FieldError, NexusError
from app.host_list import MAX_PORT, HostAllowList, address_of

VARIABLE: Final = "NEXUSKV_WORKER_HOSTS"
_AUTHORITY: Final = re.compile(
    r"(?:https?://)?(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,252})|\[(?P<v6>[0-9A-Fa-f:.]{2,45})\])"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)


def check_host(field: str, address: str, allowed: HostAllowList) -> None:
    """Raise INVALID_FIELD unless `address` is a URL or host:port that names a host and a port;
    WORKER_HOST_NOT_ALLOWED unless the host is listed. `field` is the address's place in the body.
    """
    found = _AUTHORITY.fullmatch(address)
    port = found["port"] if found else None
    if found is None or not port or not 0 < int(port) <= MAX_PORT or not _is_host(found):
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
            f" adds it, its address or its network to {allowed.variable} of the API",
        )


def _is_host(found: re.Match[str]) -> bool:
    return found["v6"] is None or address_of(found["v6"]) is not None
