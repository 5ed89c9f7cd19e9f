"""Sink ids that say what they stand for: length, engine generation, and a MAC over whose they are.

The API has to know how long a sink is before it charges anyone for filling it. Asking the worker is
a call for every materialize; the id of a sink can say it, and the secret that workers and API share
vouches that a worker made it, for this tenant and this engine.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import Final
from uuid import UUID

_MAC_BYTES: Final = 12
_SINK_ID: Final = re.compile(
    r"(s([0-9a-f]{1,16})\.([0-9a-f]{1,8})\.[0-9a-f]{32})\.([0-9a-f]{24})", re.ASCII
)


class SinkIds:
    """Makes ids with the first of one or two secrets, and reads those of both."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [sha256(b"nexuskv sink id\0" + secret.encode()).digest() for secret in secrets]

    def make(
        self,
        worker: str,
        tenant: str,
        engine_id: str,
        *,
        engine_generation: int,
        payload_bytes: int,
        unique: UUID,
    ) -> str:
        """At most 84 characters of a sink id's alphabet."""
        body = f"s{payload_bytes:x}.{engine_generation:x}.{unique.hex}"
        return f"{body}.{_mac(self._keys[0], body, worker, tenant, engine_id)}"

    def payload_bytes(
        self, sink_id: str, worker: str, tenant: str, engine_id: str, *, engine_generation: int
    ) -> int | None:
        """The sink's length; None for an id that was not made for exactly this."""
        found = _SINK_ID.fullmatch(sink_id)
        if found is None or int(found[3], 16) != engine_generation:
            return None
        genuine = any(
            _mac(key, found[1], worker, tenant, engine_id) == found[4] for key in self._keys
        )
        return int(found[2], 16) if genuine else None


def _mac(key: bytes, *parts: str) -> str:
    # No name of ours holds U+0000.
    return blake2b("\0".join(parts).encode(), key=key, digest_size=_MAC_BYTES).hexdigest()
