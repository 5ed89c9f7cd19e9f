"""Short-lived signed tokens: what a caller may do on one worker, with which payload or sink.

JSON Web Tokens with HS256 under the one secret that the API and its workers share; PyJWT signs and
checks them.

A token names its worker (`aud`), so that it opens no other one; its tenant (`sub`); one direction
(`dir`); and, where that touches one, the payload (`pay`) and the sink (`snk`). An empty payload or
sink in a token means none, never any: `require` compares for equality.

A FETCH token goes further, since its bearer makes one worker call another. It also names the worker
that may pull with it (`dst`), the sink or payload there that the bytes are for (`snk`, `tpl`), and
the source's data address as the API knows it (`adr`): the only one that the puller connects to.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import jwt
from msgspec import Struct

from app.errors import ErrorCode, NexusError

MIN_SECRET_CHARS: Final = 32
# Clocks of two machines may differ by this much.
LEEWAY_S: Final = 5
MAX_TOKEN_CHARS: Final = 6_144
_ALGORITHM: Final = "HS256"
_ISSUER: Final = "nexuskv"
# The audience of what workers send to the API.
API_AUDIENCE: Final = "nexuskv-api"


class Direction(StrEnum):
    """What a token lets its bearer do. Each names what it is bound to."""

    PUT_PAYLOAD = "put_payload"  # payload
    GET_PAYLOAD = "get_payload"  # payload
    DELETE_PAYLOAD = "delete_payload"  # payload
    CREATE_SINK = "create_sink"  # nothing: the sink has no id yet
    READ_SINK = "read_sink"  # sink: its facts and its content
    FINISH_SINK = "finish_sink"  # sink: consume or discard
    TRANSFER = "transfer"  # payload, and the sink when the transfer ends in one
    FETCH = "fetch"  # payload, source address and target: on the data port, worker to worker
    REGISTER = "register"  # worker to API: registration and heartbeats


_DIRECTIONS: Final = frozenset(Direction)


class Grant(Struct, frozen=True):
    """One permission. `worker` is the name of the worker that honours it."""

    worker: str
    tenant: str
    direction: Direction
    payload_id: str = ""
    sink_id: str = ""
    # Of FETCH tokens only.
    target_worker: str = ""
    target_payload_id: str = ""
    data_address: str = ""


class TokenKeys:
    """Signs and checks with one secret of at least 32 characters; a second one is only accepted.

    The second makes rotation possible without refusing what was signed a moment before.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        if not 1 <= len(secrets) <= 2 or any(len(one) < MIN_SECRET_CHARS for one in secrets):
            raise ValueError(
                f"the worker secret is one or two texts of at least {MIN_SECRET_CHARS} characters"
            )
        self._secrets = tuple(secrets)

    def sign(self, grant: Grant, *, now_s: int, ttl_s: int) -> str:
        """A token that is good from now on for `ttl_s` seconds."""
        claims = {
            "iss": _ISSUER,
            "aud": grant.worker,
            "sub": grant.tenant,
            "iat": now_s,
            "exp": now_s + ttl_s,
            "dir": grant.direction.value,
            "pay": grant.payload_id,
            "snk": grant.sink_id,
        }
        # Most tokens have none of these.
        more = (
            ("dst", grant.target_worker),
            ("tpl", grant.target_payload_id),
            ("adr", grant.data_address),
        )
        claims |= {name: value for name, value in more if value}
        return jwt.encode(claims, self._secrets[0], algorithm=_ALGORITHM)

    def verify(self, token: str, *, worker: str, now_s: int) -> Grant:
        """The permission in a token. Raises UNAUTHORIZED for every token that gives none here."""
        if len(token) <= MAX_TOKEN_CHARS:
            for secret in self._secrets:
                claims = _claims(token, secret, worker)
                if claims is not None:
                    return _grant(claims, worker, now_s)
        raise _unauthorized()


def require(grant: Grant, direction: Direction, *, payload_id: str = "", sink_id: str = "") -> None:
    """Raise FORBIDDEN unless the token is for this direction, this payload and this sink."""
    wanted = (direction, payload_id, sink_id)
    if (grant.direction, grant.payload_id, grant.sink_id) != wanted:
        raise NexusError(
            ErrorCode.FORBIDDEN,
            f"the token does not allow {direction} of this payload and sink; ask for one that does",
        )


def require_fetch(
    grant: Grant, *, payload_id: str, target_worker: str, sink_id: str, target_payload_id: str
) -> None:
    """Raise FORBIDDEN unless the token is for fetching this payload into exactly this target."""
    require(grant, Direction.FETCH, payload_id=payload_id, sink_id=sink_id)
    wanted = (target_worker, target_payload_id)
    if (grant.target_worker, grant.target_payload_id) != wanted:
        raise NexusError(
            ErrorCode.FORBIDDEN,
            "the token is for another worker or payload to fetch into; ask for one for this target",
        )


def _claims(token: str, secret: str, worker: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = jwt.decode(
            token,
            secret,
            algorithms=[_ALGORITHM],
            audience=worker,
            issuer=_ISSUER,
            # The clock is ours to read; `_grant` compares.
            options={
                "require": ["exp", "iat", "sub", "aud", "iss"],
                "verify_exp": False,
                "verify_iat": False,
            },
        )
    except (jwt.PyJWTError, ValueError):
        return None
    return found


def _grant(claims: dict[str, Any], worker: str, now_s: int) -> Grant:
    issued_s, expires_s = claims["iat"], claims["exp"]
    texts = [claims.get(name) for name in ("sub", "dir", "pay", "snk")]
    texts += [claims.get(name, "") for name in ("dst", "tpl", "adr")]
    if not (
        isinstance(issued_s, int)
        and isinstance(expires_s, int)
        and all(isinstance(text, str) for text in texts)
        and issued_s - LEEWAY_S <= now_s < expires_s + LEEWAY_S
        and texts[1] in _DIRECTIONS
    ):
        raise _unauthorized()
    tenant, direction, *bound = map(str, texts)
    return Grant(worker, tenant, Direction(direction), *bound)


def _unauthorized() -> NexusError:
    return NexusError(
        ErrorCode.UNAUTHORIZED,
        "the worker token is missing, malformed, expired, or signed for another worker",
    )
