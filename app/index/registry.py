"""The registry: states are stored in Postgres first and found in the index right after.

Every write is one transaction; the index of this process follows its commit, the other replicas'
follow by polling (`app.index.sync`).
"""

import asyncio
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Final
from uuid import UUID

import msgspec

from app.clock import Clock, IdSource
from app.contract.entry import CacheEntry, ReuseKey
from app.contract.registration import Registration, registration_bytes
from app.db.session import Database, WriteSession
from app.index.matcher import StateIndex
from app.index.registered import StateRow, scope_of
from app.index.repository import (
    StateFilter,
    StateWrite,
    StoredState,
    backed_states_drop,
    backed_states_revive,
    state_delete,
    state_get,
    states_by_key,
    states_list,
    states_renew,
    states_upsert,
)

# A batch may hold 8 MiB; lookups go on beside it.
ENTRIES_AT_A_TIME: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_decode_registration: Final = msgspec.json.Decoder(Registration).decode


class RegisterStatus(StrEnum):
    """What became of one registration of a batch."""

    CREATED = "created"
    SUPERSEDED = "superseded"
    UNCHANGED = "unchanged"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Registered:
    """`generation` is the stored one: on a conflict, the one that stands in the way."""

    status: RegisterStatus
    state_id: UUID
    generation: int
    deleted: bool = False


class StateRegistry:
    """Registers, lists and deletes states; raises NexusError when Postgres is away."""

    def __init__(self, database: Database, index: StateIndex, clock: Clock, ids: IdSource) -> None:
        self._database = database
        self._index = index
        self._clock = clock
        self._ids = ids

    async def register(self, registrations: Sequence[Registration]) -> list[Registered]:
        """One transaction for all; results in the order given.

        An entry id that stands twice in a batch is applied twice, in order.
        """
        writes: list[StateWrite] = []
        for registration in registrations:
            writes.append(self._write(registration))
            if len(writes) % ENTRIES_AT_A_TIME == 0:
                await asyncio.sleep(0)
        results: list[Registered | None] = [None] * len(writes)
        stored: list[tuple[int, UUID]] = []
        now = self._clock.now()
        async with self._database.write() as session:
            for chosen in _rounds(writes):
                outcome = await self._register_round(session, [writes[i] for i in chosen], now)
                for position, result in zip(chosen, outcome, strict=True):
                    results[position] = result
                    if result.status in (RegisterStatus.CREATED, RegisterStatus.SUPERSEDED):
                        stored.append((position, result.state_id))
        for position, state_id in stored:
            write = writes[position]
            self._index.upsert(
                StateRow(
                    state_id,
                    registrations[position],
                    write.tokens,
                    write.content_hash,
                    wall_us(now),
                )
            )
        return [result for result in results if result is not None]

    async def get(self, state_id: UUID) -> StoredState | None:
        """None when there is no live state of that id."""
        async with self._database.read() as session:
            stored = await state_get(session, state_id)
        return None if stored is None or stored.deleted_at is not None else stored

    async def page(
        self, where: StateFilter, after: UUID | None, limit_rows: int
    ) -> list[StoredState]:
        async with self._database.read() as session:
            return await states_list(session, where, after, limit_rows)

    async def delete(self, state_id: UUID, tenants: frozenset[str] | None) -> bool:
        """True when the state is gone now, also if it was before.

        False when the id was never given, or to none of `tenants` (None is all of them).
        """
        async with self._database.write() as session:
            stored = await state_get(session, state_id)
            if stored is None or (tenants is not None and stored.tenant not in tenants):
                return False
            deleted = await state_delete(session, state_id, self._clock.now())
        # A higher generation that was registered meanwhile stays.
        generation = stored.generation if deleted is None else deleted
        self._index.remove(stored.tenant, stored.entry_id, generation)
        return True

    # ---- states that engines back: in the transaction of their engine

    async def store_backed(
        self, session: WriteSession, registrations: Sequence[Registration]
    ) -> list[Registered]:
        """Like `register`, and one that was deleted as it is given is there again. No name twice.

        The index learns of it by `follow`, or by its poll.
        """
        now = self._clock.now()
        writes = [self._write(registration) for registration in registrations]
        await backed_states_revive(session, writes, now)
        return await self._register_round(session, writes, now)

    async def drop_backed(self, session: WriteSession, keys: Sequence[tuple[str, str]]) -> None:
        """Delete those of these (tenant, entry id) that have no tokens."""
        await backed_states_drop(session, keys, self._clock.now())

    async def follow(self, keys: Sequence[tuple[str, str]]) -> None:
        """Make the index equal to what is stored of these (tenant, entry id)."""
        async with self._database.read() as session:
            for stored in (await states_by_key(session, keys, whole=True)).values():
                if stored.deleted_at is None:
                    self._index.upsert(stored_row(stored))
                else:
                    self._index.remove(stored.tenant, stored.entry_id, stored.generation)

    def _write(self, registration: Registration) -> StateWrite:
        entry = registration.entry
        key = entry.identity.key
        scope = scope_of(key)
        return StateWrite(
            state_id=self._ids.uuid7(),
            tenant=key.tenant,
            entry_id=entry.identity.entry_id,
            generation=entry.identity.version.generation,
            lineage=entry.identity.version.lineage,
            namespace=key.namespace,
            model=key.model,
            engine_family=key.engine_family.value,
            semantic_type=key.semantic_type.value,
            tier=entry.location.tier.value,
            locator=entry.location.locator,
            token_count=len(key.tokens),
            identity_hash=self._index.identity(scope, key.tokens),
            content_hash=sha256(registration_bytes(registration)).digest(),
            body=msgspec.json.encode(with_tokens(registration, key.tokens[:1])).decode(),
            tokens=_packed_tokens(key.tokens),
        )

    async def _register_round(
        self, session: WriteSession, writes: Sequence[StateWrite], now: datetime
    ) -> list[Registered]:
        stored = await states_upsert(session, writes, now)
        keys = [(write.tenant, write.entry_id) for write in writes]
        refused = [key for key in keys if key not in stored]
        present = await states_by_key(session, refused) if refused else {}
        # Who registers the same again says that it is there now: as after a worker's restart.
        again = [
            present[key].state_id
            for write, key in zip(writes, keys, strict=True)
            if key in present and _identical(write, present[key])
        ]
        if again:
            await states_renew(session, again, now)
        return [
            _result(write, stored.get(key), present.get(key))
            for write, key in zip(writes, keys, strict=True)
        ]


def _result(write: StateWrite, state_id: UUID | None, present: StoredState | None) -> Registered:
    if state_id is not None:
        # A new row carries the id it was sent with; an older one keeps its own.
        status = RegisterStatus.CREATED if state_id == write.state_id else RegisterStatus.SUPERSEDED
        return Registered(status, state_id, write.generation)
    assert present is not None
    return Registered(
        RegisterStatus.UNCHANGED if _identical(write, present) else RegisterStatus.CONFLICT,
        present.state_id,
        present.generation,
        present.deleted_at is not None,
    )


def _identical(write: StateWrite, present: StoredState) -> bool:
    return (
        present.deleted_at is None
        and present.generation == write.generation
        and present.content_hash == write.content_hash
    )


def _rounds(writes: Sequence[StateWrite]) -> list[list[int]]:
    """Positions in rounds, so that no round names one (tenant, entry id) twice."""
    rounds: list[list[int]] = []
    seen: dict[tuple[str, str], int] = {}
    for position, write in enumerate(writes):
        number = seen.get((write.tenant, write.entry_id), 0)
        seen[write.tenant, write.entry_id] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(position)
    return rounds


def with_tokens(registration: Registration, tokens: list[int]) -> Registration:
    """The registration with other tokens in both its keys."""
    key = msgspec.structs.replace(registration.entry.identity.key, tokens=tokens)
    identity = msgspec.structs.replace(registration.entry.identity, key=key)
    entry: CacheEntry = msgspec.structs.replace(registration.entry, identity=identity)
    return msgspec.structs.replace(registration, reuse_key=ReuseKey(key), entry=entry)


def _packed_tokens(tokens: list[int]) -> bytes:
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def stored_registration(stored: StoredState) -> Registration:
    """What was registered, with the first token only; `stored` must be whole and live."""
    assert stored.body is not None
    return _decode_registration(stored.body)


def stored_row(stored: StoredState) -> StateRow:
    """The form in which the index takes it; `stored` must be whole and live."""
    assert stored.tokens is not None
    return StateRow(
        stored.state_id,
        stored_registration(stored),
        stored.tokens,
        stored.content_hash,
        wall_us(stored.updated_at),
    )


def wall_us(moment: datetime) -> int:
    """Microseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
