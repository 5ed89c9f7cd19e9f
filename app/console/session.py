"""The session of a browser: a sealed cookie, and the token that its forms carry.

The cookie is `nkvc1.<base64url(signing key's id | expiry | nonce | API key's id | mac)>`. It names
the API key and never holds it: every request asks the key ring for the key of that id, so that a
revoked key ends its sessions at once, here and on every replica. Keys of the MAC are derived from
the deployment's handle secrets under a label of their own; the first seals, a second one, during a
rotation, only opens. A session without an API key's id is of somebody who has not signed in.
"""

import hmac
import re
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Final

from app.clock import Clock, IdSource

COOKIE: Final = "nexuskv_console"
COOKIE_PATH: Final = "/console"
LIFETIME_S: Final = 12 * 3600
MAX_COOKIE_CHARS: Final = 512
_PREFIX: Final = "nkvc1."
_KEY_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 16
_MAC_BYTES: Final = 32
_US_PER_S: Final = 1_000_000
# The signing key's id, when it expires in microseconds since 1970, the nonce.
_HEAD: Final = struct.Struct(f">{_KEY_ID_BYTES}sQ{_NONCE_BYTES}s")


@dataclass(frozen=True, slots=True)
class Session:
    """`key_id` is "" before signing in; `expires_us` is wall time."""

    key_id: str
    nonce: bytes
    expires_us: int


class Sessions:
    """Seals, opens and checks sessions; any replica with the same secrets honours them."""

    def __init__(self, secrets: str, clock: Clock, ids: IdSource) -> None:
        """`secrets` are the handle secrets, which were found usable before."""
        keys = [
            sha256(b"nexuskv console\0" + value.encode()).digest()
            for value in re.split(r"[\s,]+", secrets)
            if value
        ]
        self._by_id = {blake2b(key, digest_size=_KEY_ID_BYTES).digest(): key for key in keys}
        self._sealing_id = blake2b(keys[0], digest_size=_KEY_ID_BYTES).digest()
        self._sealing_key = keys[0]
        self._clock = clock
        self._ids = ids

    def begin(self, key_id: str = "") -> Session:
        """A new session of this API key, or of nobody yet."""
        expires_us = self._clock.now_us() + LIFETIME_S * _US_PER_S
        return Session(key_id, self._ids.random_bytes(_NONCE_BYTES), expires_us)

    def seal(self, session: Session) -> str:
        """The cookie's value."""
        head = _HEAD.pack(self._sealing_id, session.expires_us, session.nonce)
        payload = head + session.key_id.encode()
        return _PREFIX + _base64url(payload + _mac(self._sealing_key, b"session", payload))

    def open(self, sealed: str) -> Session | None:
        """None when no active secret sealed it, or it has expired."""
        if len(sealed) > MAX_COOKIE_CHARS or not sealed.startswith(_PREFIX) or not sealed.isascii():
            return None
        text = sealed[len(_PREFIX) :]
        try:
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (Base64Error, ValueError):
            return None
        payload, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        key = self._by_id.get(payload[:_KEY_ID_BYTES])
        if key is None or len(payload) < _HEAD.size:
            return None
        if not hmac.compare_digest(mac, _mac(key, b"session", payload)):
            return None
        _, expires_us, nonce = _HEAD.unpack_from(payload)
        if self._clock.now_us() >= expires_us:
            return None
        return Session(payload[_HEAD.size :].decode(), nonce, expires_us)

    def form_token(self, session: Session) -> str:
        """What the session's forms carry. It changes with each sign-in, and says nothing."""
        return _base64url(_mac(self._sealing_key, b"form", session.nonce))

    def is_form_token(self, session: Session, token: str) -> bool:
        """Whether a form of this session was made with one of the active secrets."""
        given = token.encode()
        return any(
            hmac.compare_digest(given, _base64url(_mac(key, b"form", session.nonce)).encode())
            for key in self._by_id.values()
        )


def _mac(key: bytes, purpose: bytes, payload: bytes) -> bytes:
    return blake2b(purpose + b"\0" + payload, key=key, digest_size=_MAC_BYTES).digest()


def _base64url(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
