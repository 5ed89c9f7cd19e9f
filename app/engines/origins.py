"""Whose events they are, where each says it: what is another one's is left out, and counted.

Envelopes of the KV events RFC name model, tenant, additional salt, backend and rank of each event,
and number the events of a stream. A registration is for one model and its tenants; what is told of
others must neither be found by these nor take anything from them.
"""

from collections.abc import Hashable
from typing import Final, NamedTuple

import msgspec

from app.engines.events import Cleared, Event, Origin
from app.engines.registration import EngineSpec
from app.engines.stream import EventNumbers
from app.engines.tallies import plus

OTHER_RANK: Final = "other_rank"
OTHER_MODEL: Final = "other_model"
OTHER_TENANT: Final = "other_tenant"
OTHER_SALT: Final = "other_salt"
OTHER_BACKEND: Final = "other_backend"
REASONS: Final = (OTHER_RANK, OTHER_MODEL, OTHER_TENANT, OTHER_SALT, OTHER_BACKEND)


class Judged(NamedTuple):
    """`event` is None for another one's. `missing`: events of the stream lost right before it."""

    event: Event | None
    missing: int = 0


class Origins:
    """Judges the events of one publisher."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._numbers = EventNumbers()
        # The owner of the cache: the first one that is named is the engine's.
        self.backend: str | None = None
        # Blocks that events named which were another one's, by why.
        self.left_out = dict.fromkeys(REASONS, 0)
        self.other_rank: int | None = None

    def begin(self, *, same_process: bool) -> None:
        """Nothing is known to be there: whatever number comes next is in order."""
        self._numbers.forget(same_process=same_process)
        if not same_process:
            self.backend = None

    def judge(self, event: Event, said: Origin) -> Judged:
        """Leave out what is another one's; of several tenants name the event's."""
        why = self._strange(said)
        missing = 0
        if said.event_id is not None:
            missing = self._numbers.take(_stream(event, said), said.event_id)
            if why is not None and not self._numbers.over_all:
                # Another stream has its own numbers: what it lost is nothing of ours.
                missing = 0
        if why is not None:
            names = 1 if isinstance(event, Cleared) else len(event.hashes)
            self.left_out[why] = plus(self.left_out[why], names)
            return Judged(None, missing)
        if said.backend is not None:
            self.backend = said.backend
        if said.tenant is not None and len(self._spec.tenants) > 1:
            event = msgspec.structs.replace(event, tenant=said.tenant)
        return Judged(event, missing)

    def _strange(self, said: Origin) -> str | None:
        spec = self._spec
        if said.dp_rank not in (None, spec.dp_rank):
            self.other_rank = said.dp_rank
            return OTHER_RANK
        if said.model not in (None, spec.model):
            return OTHER_MODEL
        if said.tenant not in (None, *spec.tenants):
            return OTHER_TENANT
        if said.additional_salt not in (None, spec.revision):
            return OTHER_SALT
        if self.backend is not None and said.backend not in (None, self.backend):
            return OTHER_BACKEND
        return None


def _stream(event: Event, said: Origin) -> Hashable:
    """What has numbers of its own by the RFC."""
    return (*said[1:], event.medium)
