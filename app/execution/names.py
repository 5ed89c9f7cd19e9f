"""How the session of a materialize is called: after its option, so that one leads to the other."""

import re
from hashlib import blake2b
from typing import Final
from uuid import UUID

_DIGEST_BYTES: Final = 16
_SESSION: Final = re.compile(r"([0-9a-f]{32})\.[0-9a-f]{32}", re.ASCII)


def option_session(option_id: UUID, *order: str) -> str:
    """The same one for the same option and whatever else makes the order."""
    digest = blake2b("\0".join(order).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{option_id.hex}.{digest}"


def option_of(session_id: str) -> UUID | None:
    """The option that a session consumes; None for a session of anything else."""
    found = _SESSION.fullmatch(session_id)
    return UUID(hex=found[1]) if found else None
