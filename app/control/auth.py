"""Who may call: the API key of a request, or the rule that lets a laptop's own user in without one.

The keyless rule exists only in a process started for it on a loopback address, and every one of
its conditions stops an attack that reaches loopback from outside:

- *peer is loopback*: another machine, should the socket ever be reachable from one.
- *Host is loopback*: DNS rebinding. A page of evil.example whose name now resolves to 127.0.0.1 is
  same-origin with us for the browser, but its requests still say `Host: evil.example`.
- *no Origin, no Sec-Fetch-Site but none*: cross-site requests of a web page. Browsers send them
  without a preflight when they are simple (GET, or POST of a form), so CORS alone does not help.
- *a body is application/json* (a policy's also YAML, tokens and events also binary): the same from
  a browser that sends neither header: those types are never simple, they need a preflight, and we
  answer none.
- *no forwarding header*: a reverse proxy on this machine, whose callers are not on it.

The console's own pages are the one exception: a browser says of their links and forms that they are
same-origin, and sends forms as forms. So for them `Sec-Fetch-Site: same-origin` and an Origin that
is exactly the loopback Host of the request are let through; what a same-origin header cannot tell
(a rebound name) the Host still does, and a form needs the token of its session besides.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from starlette.types import Scope as AsgiScope

from app.control.keyring import KeyRing
from app.control.keys import LOOPBACK_KEY_ID, Principal, Scope
from app.errors import ErrorCode, NexusError

Headers = Iterable[tuple[bytes, bytes]]

_LOOPBACK = Principal(LOOPBACK_KEY_ID, frozenset({Scope.ADMIN}), None)
_NEVER_SIMPLE = (
    b"application/json",
    b"application/yaml",
    b"text/yaml",
    b"application/octet-stream",
    b"application/msgpack",
)
_FORWARDING = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")
_HOW = "send `Authorization: Bearer nkv_...`; `nexuskv keys create` makes a key"


class Access:
    """Turns a request into a principal."""

    def __init__(self, keyring: KeyRing, *, keyless_loopback: bool) -> None:
        self._keyring = keyring
        self._keyless_loopback = keyless_loopback

    def known(self, credential: bytes | None) -> Principal | None:
        """The principal of the one Authorization header, if this replica knows its key.

        Never waits. None says nothing about the request but that `authenticate` has to decide it.
        """
        return self._keyring.find(credential)

    async def authenticate(self, scope: AsgiScope) -> Principal:
        """The principal of an ASGI HTTP scope.

        Raises UNAUTHORIZED, or DATABASE_UNAVAILABLE | OVERLOADED when a key that is not known
        here cannot be looked up now.
        """
        credentials = _values(scope, b"authorization")
        if not credentials:
            if not self._keyless_loopback:
                raise _unauthorized(f"An API key is required: {_HOW}")
            if (obstacle := keyless_obstacle(scope)) is not None:
                raise _unauthorized(f"Without an API key {obstacle}; {_HOW}")
            return _LOOPBACK
        if len(credentials) > 1:
            raise _unauthorized("Send one Authorization header")
        principal = await self._keyring.find_or_load(credentials[0])
        if principal is None:
            raise _unauthorized("The API key is not valid: it is malformed, unknown or revoked")
        return principal

    def of_own_page(self, scope: AsgiScope) -> Principal | None:
        """This machine's user in a page of the console; None where a key is needed."""
        if self._keyless_loopback and keyless_obstacle(scope, own_page=True) is None:
            return _LOOPBACK
        return None


def require_scope(principal: Principal, scope: Scope) -> None:
    """Raise FORBIDDEN unless the key has the scope."""
    if not principal.allows(scope):
        raise NexusError(ErrorCode.FORBIDDEN, f"This needs an API key with the scope {scope}")


def require_tenant(principal: Principal, tenant: str) -> None:
    """Raise TENANT_FORBIDDEN unless the key has the tenant; the same whether it exists or not."""
    if not principal.may_use(tenant):
        raise NexusError(
            ErrorCode.TENANT_FORBIDDEN, "The API key does not cover the tenant of this request"
        )


def keyless_obstacle(scope: AsgiScope, *, own_page: bool = False) -> str | None:
    """What keeps a caller without a key out on loopback; None when nothing does.

    `own_page` is of a page of the console: its links and forms are same-origin.
    """
    client = scope.get("client")
    hosts = _values(scope, b"host")
    sites = (b"none", b"same-origin") if own_page else (b"none",)
    conditions = (
        (
            client is not None and _is_loopback_address(client[0]),
            "only this machine may call",
        ),
        (
            len(hosts) == 1 and _is_loopback_host(hosts[0]),
            "the Host header must name localhost or a loopback address",
        ),
        (
            not _values(scope, b"origin") or (own_page and is_own_origin(scope)),
            "a request must not carry an Origin header",
        ),
        (
            all(value.strip().lower() in sites for value in _values(scope, b"sec-fetch-site")),
            "a web page may not call",
        ),
        (
            not any(_values(scope, name) for name in _FORWARDING),
            "a request must not come through a proxy",
        ),
        (
            own_page or not _has_body(scope) or _needs_preflight(scope),
            "a body must be sent as application/json, application/yaml or application/octet-stream",
        ),
    )
    return next((obstacle for holds, obstacle in conditions if not holds), None)


def is_own_origin(scope: AsgiScope) -> bool:
    """Whether the one Origin header names the Host that the request was sent to."""
    origins, hosts = _values(scope, b"origin"), _values(scope, b"host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    scheme, separator, host = origins[0].lower().partition(b"://")
    return scheme in (b"http", b"https") and separator != b"" and host == hosts[0].strip().lower()


def _has_body(scope: AsgiScope) -> bool:
    lengths = _values(scope, b"content-length")
    return bool(_values(scope, b"transfer-encoding")) or any(
        length.strip(b"0") != b"" for length in lengths
    )


def _needs_preflight(scope: AsgiScope) -> bool:
    types = _values(scope, b"content-type")
    return len(types) == 1 and types[0].partition(b";")[0].strip().lower() in _NEVER_SIMPLE


@lru_cache(maxsize=64)
def _is_loopback_host(host: bytes) -> bool:
    """Whether a Host header (name or address, with or without a port) means this machine."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, closed, port = text[1:].partition("]")
        if not closed or ":" not in name or (port and not port.startswith(":")):
            return False
        port = port[1:]
    else:
        name, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return False
    return name == "localhost" or _is_loopback_address(name)


@lru_cache(maxsize=256)
def _is_loopback_address(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _values(scope: AsgiScope, wanted: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == wanted]


def _unauthorized(message: str) -> NexusError:
    return NexusError(ErrorCode.UNAUTHORIZED, message)
