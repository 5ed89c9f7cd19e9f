"""The life of one transfer session, and which status may follow which: the one table of it."""

from collections.abc import Mapping
from types import MappingProxyType

from app.contract.enums import TransferStatus

_T = TransferStatus
_ENDED_BADLY = frozenset({_T.FAILED, _T.CANCELLED, _T.MISSING, _T.REJECTED, _T.FALLBACK})

# A session that did not succeed may be tried again under the same id; one that did, only by whoever
# found its copy gone.
# `registered` is the end of a session that moved nothing: the protocol alone was completed.
TRANSFER_TRANSITIONS: Mapping[TransferStatus, frozenset[TransferStatus]] = MappingProxyType(
    {
        _T.INITIATED: frozenset({_T.IN_FLIGHT, _T.REGISTERED, _T.COMPLETED}) | _ENDED_BADLY,
        _T.IN_FLIGHT: frozenset({_T.COMPLETED}) | _ENDED_BADLY,
        _T.COMPLETED: frozenset({_T.INITIATED}),
        _T.REGISTERED: frozenset(),
        **dict.fromkeys(_ENDED_BADLY, frozenset({_T.INITIATED})),
    }
)

RUNNING = frozenset({_T.INITIATED, _T.IN_FLIGHT})


def before(status: TransferStatus) -> frozenset[TransferStatus]:
    """From which a session may come to `status`."""
    return frozenset(one for one, after in TRANSFER_TRANSITIONS.items() if status in after)
