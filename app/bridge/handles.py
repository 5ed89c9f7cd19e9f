"""Source and option handles: signed, not stored.

A handle is `<prefix><base64url(key id | fields | tenant | mac)>`. The MAC is keyed BLAKE2b over the
kind and everything before it, 16 bytes. Any replica with one of the active secrets honours
it. The first secret signs; a second one, during a rotation, only verifies.
"""

import hmac
import re
import struct
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from binascii import b2a_base64
from hashlib import blake2b, sha256
from typing import Final
from uuid import UUID

from app.execution.grants import OptionGrant, SourceGrant

_SOURCE_PREFIX: Final = "nkvs1."
_OPTION_PREFIX: Final = "nkvo1."
_OPTION_ID: Final = re.compile(r"opt_[0-9a-f]{32}")
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_KEY_ID_BYTES: Final = 4
_MAC_BYTES: Final = 16
_MIN_SECRET_CHARS: Final = 32
_MAX_SECRETS: Final = 2
# key id, expires_us, generation, matched tokens, state id, identity hash, lookup id
_SOURCE: Final = struct.Struct(">4sQII16s16s16s")
# ... , option id, target digest, estimate id, transfer_us
_OPTION: Final = struct.Struct(">4sQII16s16s16s16s16s16sQ")


class HandleSecretError(ValueError):
    """The signing secrets cannot be used; the message says why and what to do."""


class HandleKeys:
    """Seals and opens handles with one or two active secrets."""

    def __init__(self, secrets: str) -> None:
        """`secrets`: one or two of at least 32 characters, separated by comma or white space.

        The first signs. Raises HandleSecretError when there is none, one is too short, or there
        are more than two.
        """
        values = [value for value in re.split(r"[\s,]+", secrets) if value]
        if not 1 <= len(values) <= _MAX_SECRETS:
            raise HandleSecretError(
                f"the handle secret must hold one or two secrets, not {len(values)}"
            )
        if any(len(value) < _MIN_SECRET_CHARS for value in values):
            raise HandleSecretError(
                f"each handle secret must have at least {_MIN_SECRET_CHARS} characters; "
                "`openssl rand -hex 32` makes one"
            )
        keys = [sha256(b"nexuskv handle\0" + value.encode()).digest() for value in values]
        self._by_id = {blake2b(key, digest_size=_KEY_ID_BYTES).digest(): key for key in keys}
        self._signing_id = blake2b(keys[0], digest_size=_KEY_ID_BYTES).digest()
        self._signing_key = keys[0]

    def seal_source(self, grant: SourceGrant) -> str:
        fields = _SOURCE.pack(
            self._signing_id,
            grant.expires_us,
            grant.generation,
            grant.matched_tokens,
            grant.state_id.bytes,
            grant.identity_hash,
            grant.lookup_id.bytes,
        )
        return self._seal(_SOURCE_PREFIX, fields + grant.tenant.encode())

    def open_source(self, handle: str) -> SourceGrant | None:
        """The grant, expired or not; None when no active secret made this handle."""
        payload = self._open(_SOURCE_PREFIX, handle, _SOURCE.size)
        if payload is None:
            return None
        _, expires_us, generation, tokens, state_id, identity, lookup_id = _SOURCE.unpack_from(
            payload
        )
        return SourceGrant(
            tenant=payload[_SOURCE.size :].decode(),
            state_id=UUID(bytes=state_id),
            generation=generation,
            matched_tokens=tokens,
            identity_hash=identity,
            lookup_id=UUID(bytes=lookup_id),
            expires_us=expires_us,
        )

    def seal_option(self, grant: OptionGrant) -> str:
        fields = _OPTION.pack(
            self._signing_id,
            grant.expires_us,
            grant.generation,
            grant.matched_tokens,
            grant.state_id.bytes,
            grant.identity_hash,
            grant.lookup_id.bytes,
            grant.option_id.bytes,
            grant.target_digest,
            grant.estimate_id.bytes,
            grant.transfer_us,
        )
        # No text of ours holds U+0000.
        texts = f"{grant.tenant}\0{grant.target_residency}"
        return self._seal(_OPTION_PREFIX, fields + texts.encode())

    def open_option(self, handle: str) -> OptionGrant | None:
        """The grant, expired or not; None when no active secret made this handle."""
        payload = self._open(_OPTION_PREFIX, handle, _OPTION.size)
        if payload is None:
            return None
        fields = _OPTION.unpack_from(payload)
        tenant, _, residency = payload[_OPTION.size :].decode().partition("\0")
        return OptionGrant(
            tenant=tenant,
            target_residency=residency,
            expires_us=fields[1],
            generation=fields[2],
            matched_tokens=fields[3],
            state_id=UUID(bytes=fields[4]),
            identity_hash=fields[5],
            lookup_id=UUID(bytes=fields[6]),
            option_id=UUID(bytes=fields[7]),
            target_digest=fields[8],
            estimate_id=UUID(bytes=fields[9]),
            transfer_us=fields[10],
        )

    def _seal(self, prefix: str, payload: bytes) -> str:
        mac = _mac(self._signing_key, prefix, payload)
        return prefix + _base64url(payload + mac)

    def _open(self, prefix: str, handle: str, fields_bytes: int) -> bytes | None:
        if not handle.startswith(prefix) or not handle.isascii():
            return None
        text = handle[len(prefix) :]
        try:
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (Base64Error, ValueError):
            return None
        # Base64 has several spellings of the same bytes; only the one that was issued counts.
        if _base64url(raw) != text:
            return None
        payload, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        key = self._by_id.get(payload[:_KEY_ID_BYTES])
        if key is None or len(payload) < fields_bytes:
            return None
        return payload if hmac.compare_digest(mac, _mac(key, prefix, payload)) else None


def _base64url(raw: bytes) -> str:
    """Unpadded; spelt out because the standard library takes three calls for it."""
    return b2a_base64(raw, newline=False).translate(_URL_SAFE).rstrip(b"=").decode()


def _mac(key: bytes, prefix: str, payload: bytes) -> bytes:
    return blake2b(prefix.encode() + payload, key=key, digest_size=_MAC_BYTES).digest()


def option_id_text(option_id: UUID) -> str:
    return f"opt_{option_id.hex}"


def parse_option_id(text: str) -> UUID | None:
    """None when no handle of ours could carry this id."""
    return UUID(text[4:]) if _OPTION_ID.fullmatch(text) else None


def target_digest(target_id: str, engine_id: str, engine_generation: int) -> bytes:
    """16 bytes that bind a handle to its target; lengths keep the parts apart."""
    digest = blake2b(digest_size=16)
    for part in (target_id.encode(), engine_id.encode(), str(engine_generation).encode()):
        digest.update(struct.pack(">I", len(part)) + part)
    return digest.digest()
