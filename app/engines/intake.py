"""What operators and pushers do to engines: register, forget, and hand frames over."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from app.clock import Clock
from app.db.session import Database, ReadSession, WriteSession
from app.engines.addresses import EngineAddresses, check_consistent
from app.engines.backed import BackedRegistry, check_states, state_names
from app.engines.directory import Engine, EngineDirectory, EngineStatus, decoded, encoded
from app.engines.fields import WireError
from app.engines.registration import MAX_ENGINES, Attach, EngineKey, EngineSpec
from app.engines.repository import (
    StoredEngine,
    engine_by_key,
    engine_forget,
    engine_listening,
    engine_register,
    engine_states_alone,
    engines_count,
    engines_lock,
)
from app.engines.stream import Order
from app.engines.views import ViewState
from app.engines.wire import decode_batch
from app.errors import ErrorCode, FieldError, NexusError


class Registered(StrEnum):
    """What became of a registration."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    REPLACED = "replaced"


class Pushed(NamedTuple):
    """What became of a pushed frame; `repeated`: it was the same as one that was there."""

    applied: int
    repeated: bool
    lost: int
    epoch: int
    state: ViewState


class EngineIntake:
    """Takes registrations and pushed frames.

    `tenants` are those that the caller may use, None for all: an engine that has others is not
    the caller's.
    """

    def __init__(
        self,
        database: Database,
        directory: EngineDirectory,
        addresses: EngineAddresses,
        states: BackedRegistry,
        clock: Clock,
    ) -> None:
        self._database = database
        self._states = states
        self._directory = directory
        self._addresses = addresses
        self._clock = clock

    async def register(
        self, spec: EngineSpec, *, replace: bool = False, tenants: frozenset[str] | None = None
    ) -> Registered:
        """Store a registration and its states, and follow the engine from now on.

        Raises INVALID_FIELD, ENGINE_HOST_NOT_ALLOWED, TENANT_FORBIDDEN when the key is registered
        for others; ENGINE_CONFLICT when it is registered otherwise and not `replace`, when the
        endpoint to listen on is another engine's, or a state is there otherwise; OVERLOADED when
        there are too many engines; DATABASE_UNAVAILABLE. Nothing is stored then.
        """
        check_consistent(spec)
        check_states(spec)
        self._addresses.check(spec)
        async with self._directory.changing():
            now = self._clock.now()
            async with self._database.write() as session:
                await engines_lock(session)
                stored = await engine_by_key(session, spec.key)
                if stored is not None and not _covers(tenants, stored):
                    raise NexusError(
                        ErrorCode.TENANT_FORBIDDEN,
                        "The API key does not cover the tenant of this request",
                    )
                before = None if stored is None else decoded(stored.spec)
                unchanged = before == spec
                if unchanged:
                    # A state of it may have been deleted by itself.
                    await self._states.store(session, spec, again=True)
                else:
                    await _check_room(session, spec, tenants, new=stored is None)
                    await self._replace(session, spec, before, now, replace=replace)
            # Where it is unchanged, another replica may have stored it a moment ago.
            since = stored.registered_at if unchanged and stored is not None else now
            self._directory.apply(spec, since)
        if unchanged:
            return Registered.UNCHANGED
        return Registered.CREATED if stored is None else Registered.REPLACED

    async def _replace(
        self,
        session: WriteSession,
        spec: EngineSpec,
        before: EngineSpec | None,
        now: datetime,
        *,
        replace: bool,
    ) -> None:
        alone = await engine_states_alone(session, spec.key)
        if not await engine_register(session, spec.key, encoded(spec), now, replace=replace):
            raise _conflict(spec, before)
        await self._states.store(session, spec)
        await self._states.drop(session, alone - state_names(spec))

    async def forget(self, key: EngineKey, *, tenants: frozenset[str] | None = None) -> bool:
        """Take the engine's blocks out of the index, and follow it no more. States that no other
        registration names leave with it.

        False when there is no such engine. Raises DATABASE_UNAVAILABLE.
        """
        async with self._directory.changing():
            async with self._database.write() as session:
                await engines_lock(session)
                stored = await engine_by_key(session, key)
                if stored is not None and not _covers(tenants, stored):
                    return False
                if stored is not None:
                    await self._states.drop(session, await engine_states_alone(session, key))
                    await engine_forget(session, key)
            self._directory.drop(key)
        return stored is not None

    def push(
        self,
        key: EngineKey,
        number: int,
        payload: bytes,
        *,
        lost: bool,
        tenants: frozenset[str] | None = None,
    ) -> Pushed:
        """Take a frame in that was handed over. `lost`: those before it will not come.

        Raises NOT_FOUND, ENGINE_CONFLICT for an engine with an endpoint, INVALID_BODY for a frame
        that cannot be read, INVALID_FIELD for one of another rank, EVENTS_MISSING when frames
        before it are missing. Nothing is taken then.
        """
        engine = self._directory.get(key)
        if engine is None or not _may_use(tenants, engine.spec):
            raise no_engine()
        if engine.spec.endpoint is not None:
            raise NexusError(
                ErrorCode.ENGINE_CONFLICT,
                "The engine's events come from its endpoint; register it without one to push them",
            )
        _check_frame(engine, payload)
        missing = engine.view.missing(number, payload)
        if missing is not None and not lost:
            raise _missing(missing)
        taken = engine.view.take(number, payload, now_us=self._clock.now_us())
        return Pushed(
            applied=taken.events,
            repeated=taken.order is Order.AGAIN,
            lost=taken.lost,
            epoch=engine.view.epoch,
            state=engine.view.state,
        )

    async def take(
        self,
        key: EngineKey,
        number: int,
        payload: bytes,
        *,
        lost: bool,
        tenants: frozenset[str] | None = None,
    ) -> Pushed:
        """`push`, once nothing else holds the index: frames are taken in the order of the calls."""
        async with self._directory.writing:
            return self.push(key, number, payload, lost=lost, tenants=tenants)

    async def statuses(self, keys: Sequence[EngineKey]) -> list[EngineStatus]:
        """How these engines stand; without those that are not registered any more."""
        found = [self._directory.get(key) for key in keys]
        return [self._directory.status(one) for one in found if one is not None]


async def _check_room(
    session: ReadSession, spec: EngineSpec, tenants: frozenset[str] | None, *, new: bool
) -> None:
    """Raises OVERLOADED, and ENGINE_CONFLICT for a port that is another engine's."""
    if new and await engines_count(session) >= MAX_ENGINES:
        raise NexusError(
            ErrorCode.OVERLOADED,
            f"There are {MAX_ENGINES} engines already; DELETE /v1/engines/INSTANCE forgets one",
        )
    if spec.attach is not Attach.BIND or spec.endpoint is None:
        return
    other = await engine_listening(session, spec.key, spec.endpoint)
    if other is not None:
        # Whose it is, is told to those who may see it.
        named = f"{other.key.instance_id} (rank {other.key.dp_rank})"
        raise NexusError(
            ErrorCode.ENGINE_CONFLICT,
            f"/endpoint: {named if _covers(tenants, other) else 'another engine'} is listened for"
            " there; give each engine a port of its own",
        )


def _covers(tenants: frozenset[str] | None, stored: StoredEngine) -> bool:
    """By what stands in the row, which a newer version may have written."""
    given = stored.spec.get("tenants")
    return tenants is None or (isinstance(given, list) and tenants.issuperset(given))


def _may_use(tenants: frozenset[str] | None, spec: EngineSpec) -> bool:
    return tenants is None or tenants.issuperset(spec.tenants)


def no_engine() -> NexusError:
    return NexusError(
        ErrorCode.NOT_FOUND, "there is no such engine; GET /v1/engines lists those there are"
    )


def _check_frame(engine: Engine, payload: bytes) -> None:
    try:
        batch = decode_batch(payload)
    except WireError as error:
        raise NexusError(ErrorCode.INVALID_BODY, f"The frame cannot be read: {error}") from None
    if batch.of_another(engine.spec.dp_rank):
        finding = FieldError(
            "/query/dp_rank",
            ErrorCode.INVALID_FIELD,
            f"the frame is of data parallel rank {batch.dp_rank}, not {engine.spec.dp_rank}",
        )
        raise NexusError(ErrorCode.INVALID_FIELD, finding.detail, errors=[finding])


def _missing(missing: range) -> NexusError:
    first, last = missing.start, missing.stop - 1
    finding = FieldError(
        "/query/sequence",
        ErrorCode.EVENTS_MISSING,
        f"frames {first} to {last} were not pushed",
        value=msgspec.json.encode({"from": first, "to": last}).decode(),
    )
    return NexusError(
        ErrorCode.EVENTS_MISSING,
        f"Frames {first} to {last} are missing before this one: push them first, or this one with"
        " lost=true, after which the engine's blocks are unknown until it clears or restarts",
        errors=[finding],
    )


def _conflict(spec: EngineSpec, before: EngineSpec | None) -> NexusError:
    names = (
        []
        if before is None
        else [
            name
            for name in EngineSpec.__struct_fields__
            if getattr(before, name) != getattr(spec, name)
        ]
    )
    what = f" (differing: {', '.join(names)})" if names else ""
    return NexusError(
        ErrorCode.ENGINE_CONFLICT,
        f"{spec.instance_id} (rank {spec.dp_rank}) is registered otherwise{what}; register it with"
        " replace=true, which begins anew, or under another instance_id",
    )
