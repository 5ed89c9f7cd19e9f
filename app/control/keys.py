"""API keys as values: scopes, principals, the text of a key and its digest. No I/O.

A key reads `nkv_<id>_<secret>`. The id is public (it names the key in lists, logs and decisions);
the secret carries 256 random bits, so one unsalted SHA-256 at rest is as good as a slow KDF and
costs a microsecond a request instead of a hundred milliseconds.
"""

import hashlib
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

ALL_TENANTS = "*"
# The key id that decisions and logs show for the keyless callers of a laptop.
LOOPBACK_KEY_ID = "loopback"

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_BYTES = 6
_SECRET_BYTES = 32
_SECRET_CHARS = 43  # 62 ** 43 > 2 ** 256
_KEY = re.compile(rb"nkv_[0-9a-f]{12}_[0-9A-Za-z]{43}")
_BEARER = b"bearer "


class Scope(StrEnum):
    """What a key may do. `admin` implies every other one."""

    BRIDGE = "bridge"
    STATES_READ = "states:read"
    STATES_WRITE = "states:write"
    DECISIONS_READ = "decisions:read"
    DECISIONS_WRITE = "decisions:write"
    WORKERS_READ = "workers:read"
    WORKER_TOKENS_ISSUE = "worker-tokens:issue"
    POLICIES_READ = "policies:read"
    POLICIES_WRITE = "policies:write"
    POLICIES_ACTIVATE = "policies:activate"
    PROFILES_READ = "profiles:read"
    PROFILES_WRITE = "profiles:write"
    TOPOLOGY_READ = "topology:read"
    TOPOLOGY_WRITE = "topology:write"
    TRANSFERS_WRITE = "transfers:write"
    ENGINES_READ = "engines:read"
    EVENTS_WRITE = "events:write"
    ADMIN = "admin"

    # Enum's own is a call of Python code, for each look-up of each request.
    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. `tenants` is None for a key of all tenants."""

    key_id: str
    scopes: frozenset[Scope]
    tenants: frozenset[str] | None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def may_use(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it is made: `text` is shown once and kept nowhere."""

    key_id: str
    text: str
    sha256: bytes


def generate(random_bytes: Callable[[int], bytes]) -> NewKey:
    """Make a key from `random_bytes(count)`, which must be cryptographically strong."""
    key_id = random_bytes(_ID_BYTES).hex()
    text = f"nkv_{key_id}_{_base62(random_bytes(_SECRET_BYTES))}"
    return NewKey(key_id, text, digest(text.encode()))


def digest(token: bytes) -> bytes:
    """SHA-256 of a whole key, 32 bytes: the form at rest and in memory."""
    return hashlib.sha256(token).digest()


def bearer_token(authorization: bytes) -> bytes | None:
    """The credential of an Authorization header; None when its scheme is not Bearer."""
    if authorization[:7].lower() != _BEARER:
        return None
    return authorization[7:].strip(b" ")


def is_well_formed(token: bytes) -> bool:
    """Whether `token` could be a key at all: what is not one is refused without a look-up."""
    return _KEY.fullmatch(token) is not None


def principal_of(key_id: str, scopes: list[str], tenants: list[str]) -> Principal:
    """The principal of a stored key; a scope that this version does not know grants nothing."""
    return Principal(
        key_id=key_id,
        scopes=frozenset(scope for scope in Scope if scope.value in scopes),
        tenants=None if ALL_TENANTS in tenants else frozenset(tenants),
    )


def _base62(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    chars = []
    for _ in range(_SECRET_CHARS):
        number, digit = divmod(number, 62)
        chars.append(_BASE62[digit])
    return "".join(chars)
