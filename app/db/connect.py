"""How connections are made: the URL as the driver wants it, and what each one is told."""

from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

_SCHEMES = frozenset({"postgres", "postgresql", "postgresql+asyncpg"})
# libpq spells these in a URL; asyncpg spells them otherwise, or they are ours to set.
_SET_BY_US = ("application_name", "connect_timeout")
_MS_PER_S = 1000
# The server gives up first, so that a time-out normally has a server-side reason; the client's
# own limit is for a server that no longer answers at all.
CLIENT_GRACE_S = 2.0
_CLIENT_CHECK_MS = "1000"


def normalise_url(url: str) -> str:
    """The URL as SQLAlchemy and asyncpg want it: `postgresql+asyncpg://...`.

    Accepts `postgres://`, `postgresql://` and `postgresql+asyncpg://`, a socket directory in
    `?host=/dir`, and libpq's `sslmode`. Raises ValueError, without the password, on anything else.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError("The database URL cannot be parsed: postgresql://USER@HOST/DB") from None
    if parsed.drivername not in _SCHEMES:
        raise ValueError(
            f"The database URL must start with postgresql://, not {parsed.drivername}://"
        )
    query = {name: value for name, value in parsed.query.items() if name not in _SET_BY_US}
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    normal = parsed.set(drivername="postgresql+asyncpg", query=query)
    return normal.render_as_string(hide_password=False)


def connect_args(
    connect_timeout_s: float, statement_timeout_s: float, application_name: str
) -> dict[str, Any]:
    """What the driver is told of every connection."""
    statement_ms = str(round(statement_timeout_s * _MS_PER_S))
    return {
        "timeout": connect_timeout_s,
        "command_timeout": statement_timeout_s + CLIENT_GRACE_S,
        "server_settings": {
            "application_name": application_name,
            "statement_timeout": statement_ms,
            "lock_timeout": statement_ms,
            "idle_in_transaction_session_timeout": str(4 * int(statement_ms)),
            # What a process that died waits for is not done in its name later.
            "client_connection_check_interval": _CLIENT_CHECK_MS,
            "timezone": "UTC",
            # Compiling a plan never pays for statements as short as ours.
            "jit": "off",
        },
    }
