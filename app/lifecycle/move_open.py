"""The first step of prefetch and store: whose session it is, and which state it is about."""

from typing import Final

from app.clock import Clock
from app.contract.enums import TransferStatus
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.execution.repository import transfer_close, transfer_find, transfer_open
from app.execution.sessions import RUNNING, before
from app.execution.transfers import StoredTransfer, TransferEnd
from app.index.repository import states_by_key
from app.lifecycle.journey import Journey
from app.lifecycle.materialize_plan import Workers
from app.lifecycle.steps import End
from app.transfer.faults import WorkerCallError

_DONE: Final = TransferStatus.COMPLETED


class Open:
    """Takes the session, and finds the state.

    One that completed is taken again only when its copy is found to be gone: whoever repeats the
    request wants the bytes there.
    """

    name = "open"

    def __init__(
        self, journey: Journey, workers: Workers, database: Database, clock: Clock
    ) -> None:
        self._journey = journey
        self._workers = workers
        self._database = database
        self._clock = clock

    async def do(self) -> End:
        """DONE when there is nothing to do: `journey.known` is the session as it stands."""
        journey = self._journey
        if await self._take():
            return End.GO_ON
        known = self._as_it_stands()
        if known.status is _DONE:
            journey.copy_present = await self._has_copy(known)
            # Of two that find it gone the first takes it, and the other joins.
            if journey.copy_present is False and await self._take(known.fence):
                return End.GO_ON
            self._as_it_stands()
        journey.notes["copy_present"] = journey.copy_present
        return End.DONE

    async def _take(self, gone_fence: int | None = None) -> bool:
        """False when it is not to be had: `journey.known` is how it stands then."""
        journey, asked = self._journey, self._journey.asked
        async with self._database.write() as session:
            opened = await transfer_open(
                session,
                asked,
                fence=journey.fence,
                decision_id=journey.attempt.decision_id,
                now=self._clock.now(),
                expires_at=journey.expires_at,
                gone_fence=gone_fence,
            )
            if not opened and not await journey.has(session, *RUNNING):
                journey.known = await transfer_find(session, asked.tenant, asked.transfer_id)
                return False
            key = (asked.tenant, asked.entry_id)
            stored = (await states_by_key(session, [key], whole=True)).get(key)
            if stored is None or stored.deleted_at is not None:
                raise NexusError(
                    ErrorCode.NOT_FOUND, "the tenant has no live state of that entry_id"
                )
            journey.stored = journey.attempt.stored = stored
        return True

    async def _has_copy(self, known: StoredTransfer) -> bool | None:
        """Whether just these bytes are at the target now; None when it cannot be asked."""
        route, end = known.route, known.end
        copy = end.result.payload_handle if end is not None and end.result is not None else None
        if route is None or end is None or copy is None:
            return False
        try:
            facts = await self._workers.client.payload(
                route.target_worker,
                route.target_payload_id,
                tenant=known.asked.tenant,
                deadline_s=self._workers.left_s(self._journey.attempt),
            )
        except WorkerCallError:
            return None
        found = facts and (facts.payload_bytes, f"xxh3-128:{facts.checksum}")
        return found == (end.bytes_transferred, copy.opaque_ref)

    def _as_it_stands(self) -> StoredTransfer:
        known = self._journey.known
        if known is None:
            raise NexusError(ErrorCode.OVERLOADED, "the transfer changed meanwhile; ask again")
        if known.asked != self._journey.asked:
            raise NexusError(
                ErrorCode.TRANSFER_CONFLICT,
                "this transfer_id was used for another transfer; take a new one",
            )
        return known

    async def undo(self) -> None:
        """The session ends as what it came to, and may be taken again."""
        journey = self._journey
        failed, end = journey.status, journey.end
        if end is None or failed not in before(TransferStatus.INITIATED) - {_DONE}:
            failed, end = TransferStatus.FAILED, TransferEnd("it was not carried out")
        async with self._database.write() as session:
            await transfer_close(
                session, journey.asked, journey.fence,
                status=failed, end=end, now=self._clock.now(),
            )  # fmt: skip


def is_running(known: StoredTransfer) -> bool:
    return known.status in RUNNING
