"""Where engines' sockets may be: the transports and hosts that an operator has listed. Pure.

The API opens connections to what a registration names, and listens where it says, so both are
checked against the list before anything is stored.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final

from app.engines.reach import RULES, Rule
from app.engines.registration import Attach, EngineSpec
from app.errors import ErrorCode, FieldError, NexusError
from app.host_list import MAX_PORT, HostAllowList, address_of

HOSTS_VARIABLE: Final = "NEXUSKV_ENGINE_HOSTS"
SCHEMES_VARIABLE: Final = "NEXUSKV_ENGINE_SCHEMES"
# What may be listed: sockets of this process alone lead nowhere.
SCHEMES: Final = ("tcp", "ipc")
_TCP: Final = re.compile(
    r"tcp://(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,252})|\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]"
    r"|(?P<any>\*)):(?P<port>[0-9]{1,5})",
    re.ASCII,
)
# A path from the root; what begins with @ is Linux' own space of names.
_IPC: Final = re.compile(r"ipc://(/[A-Za-z0-9._/-]{1,100}|@[A-Za-z0-9._-]{1,100})", re.ASCII)
_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - what `*` means to a socket that listens


class EngineAddresses:
    """The allow-list. Raises ValueError for an entry that is no host, or no scheme of SCHEMES."""

    def __init__(self, hosts: HostAllowList, schemes: Collection[str]) -> None:
        for scheme in schemes:
            if scheme not in SCHEMES:
                raise ValueError(f"{SCHEMES_VARIABLE}: {scheme!r} is none of {', '.join(SCHEMES)}")
        self._hosts = hosts
        self._schemes = frozenset(schemes)

    def check(self, spec: EngineSpec) -> None:
        """Raises INVALID_FIELD for what no socket can use, or ENGINE_HOST_NOT_ALLOWED."""
        for field, address, binds in (
            ("endpoint", spec.endpoint, spec.attach is Attach.BIND),
            ("replay_endpoint", spec.replay_endpoint, False),
        ):
            if address is not None:
                self._check(field, address, binds=binds)

    def _check(self, field: str, address: str, *, binds: bool) -> None:
        scheme = address.partition("://")[0]
        if scheme in SCHEMES and scheme not in self._schemes:
            raise NexusError(
                ErrorCode.ENGINE_HOST_NOT_ALLOWED,
                f"/{field}: {scheme}:// is not allowed; an operator adds it to"
                f" {SCHEMES_VARIABLE} of the API",
            )
        if scheme == "ipc":
            if not _IPC.fullmatch(address):
                raise _invalid(field, "must be ipc:// and an absolute path")
            return
        host = _tcp_host(address)
        if host is None:
            raise _invalid(field, "must be tcp://HOST:PORT with a port from 1 to 65535")
        if binds and address_of(host) is None:
            raise _invalid(field, "must name an address of this machine, or *, to listen on")
        if not binds and host == _ANY_ADDRESS:
            raise _invalid(field, "must name the engine's host: * is for a socket that listens")
        if not self._hosts.allows(host):
            raise NexusError(
                ErrorCode.ENGINE_HOST_NOT_ALLOWED,
                f"The host {host} of /{field} is not among those where engines may be; an operator"
                f" adds it, its address or its network to {self._hosts.variable} of the API",
            )


def _tcp_host(address: str) -> str | None:
    """The host without brackets; None where it, or the port, cannot be one."""
    found = _TCP.fullmatch(address)
    if found is None or not 0 < int(found["port"]) <= MAX_PORT:
        return None
    if found["any"]:
        return _ANY_ADDRESS
    if found["v6"] is not None:
        return found["v6"] if address_of(found["v6"]) is not None else None
    return found["name"]


def check_consistent(spec: EngineSpec) -> None:
    """Raise INVALID_FIELD, with all findings, where fields of a registration contradict."""
    found = list(_contradictions(spec))
    if found:
        raise NexusError(
            ErrorCode.INVALID_FIELD, f"{found[0].pointer} {found[0].detail}", errors=found
        )


def _contradictions(spec: EngineSpec) -> Iterator[FieldError]:
    tenants = set(spec.tenants)
    if len(tenants) < len(spec.tenants):
        yield _finding("tenants", "must name each tenant once")
    strangers = sorted(set(spec.salts.values()) - tenants)
    if strangers:
        yield _finding("salts", f"must lead to tenants of /tenants; {strangers[0]} is none")
    if len(tenants) > 1 and not (spec.salts or spec.pooled or spec.names_tenants):
        yield _finding(
            "salts",
            "must say whose blocks are whose where there are several tenants; `pooled` shares"
            " unsalted blocks among all of them",
        )
    if len({group.group_idx for group in spec.groups}) < len(spec.groups):
        yield _finding("groups", "must name each group_idx once")
    if any(
        group.window_tokens is not None and RULES[group.kind.value] is not Rule.WINDOW
        for group in spec.groups
    ):
        yield _finding("groups", "may have window_tokens for kinds of sliding windows only")
    if spec.endpoint is None and spec.replay_endpoint is not None:
        yield _finding("replay_endpoint", "is for an engine with an endpoint; pushed frames have"
                       " no replay")  # fmt: skip
    if spec.endpoint is None and spec.attach is Attach.BIND:
        yield _finding("attach", "is for an engine with an endpoint")


def _finding(field: str, detail: str) -> FieldError:
    return FieldError(f"/{field}", ErrorCode.INVALID_FIELD, detail)


def _invalid(field: str, detail: str) -> NexusError:
    finding = _finding(field, detail)
    return NexusError(
        ErrorCode.INVALID_FIELD, f"{finding.pointer} {finding.detail}", errors=[finding]
    )
