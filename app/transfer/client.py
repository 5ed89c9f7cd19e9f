"""The API's client of workers: transfers, and what is known of sinks and payloads.

Every call is safe to repeat. What goes wrong is one exception, `WorkerCallError`, with a kind from
a closed list; a transfer that failed at the worker is no fault of the call but an answer.
"""

import asyncio
import math
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, Protocol, TypeVar

import msgspec
import structlog

from app.clock import Clock
from app.contract.enums import TransferStatus
from app.transfer.faults import WorkerCallError, WorkerFault
from app.transfer.grants import fetch_grant, transfer_grant
from app.transfer.lane import ORDERS, Call, Lane, LaneLimits, Reply
from app.transfer.tokens import Direction, Grant, TokenKeys
from app.transfer.wire import (
    NewTransfer,
    PayloadFacts,
    SinkFacts,
    TransferFacts,
    TransferSource,
)

__all__ = ["WorkerAddress", "WorkerCallError", "WorkerClient", "WorkerFault"]

Operation = Literal["transfer", "cancel", "sink", "payload", "delete_payload"]
OPERATIONS: Final[tuple[Operation, ...]] = (
    "transfer", "cancel", "sink", "payload", "delete_payload",
)  # fmt: skip
OK: Final = "ok"

# The worker ends a transfer this much before we stop waiting for it, so that we hear how. It has
# half of that to answer: it may need a moment to end.
_MARGIN_RATIO: Final = 0.1
_MAX_MARGIN_S: Final = 0.5
_MAX_WIRE_S: Final = 600.0
_CALL_S: Final = 5.0
_CANCEL_S: Final = 5.0
_MAX_CANCELS: Final = 1_024
# Beyond the deadline: clocks differ, and the source checks its token when it is asked.
_TOKEN_SPARE_S: Final = 10
_US_PER_S: Final = 1_000_000
_MAX_DETAIL_CHARS: Final = 500
# Of the ids on the wire; whatever else is asked for cannot exist at a worker.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,254}", re.ASCII)
_CHECKSUM: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
log = structlog.get_logger("nexuskv.workers")

T = TypeVar("T")


class WorkerAddress(Protocol):
    """Where a worker is."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def data_address(self) -> str: ...


class _Refusal(msgspec.Struct):
    code: str = ""
    detail: str = ""


class WorkerClient:
    """Calls workers by name. `resolve` says where one is, None when it is not known.

    Without `keys` (no secret is configured) every call is UNAUTHORIZED. `calls` counts by operation
    and by `ok` or the kind of fault.
    """

    def __init__(
        self,
        resolve: Callable[[str], WorkerAddress | None],
        keys: TokenKeys | None,
        clock: Clock,
        *,
        limits: LaneLimits | None = None,
    ) -> None:
        self._resolve = resolve
        self._keys = keys
        self._clock = clock
        self._limits = limits or LaneLimits()
        self._lanes: dict[str, Lane] = {}
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._transfer_facts = msgspec.json.Decoder(TransferFacts)
        self._sink_facts = msgspec.json.Decoder(SinkFacts)
        self._payload_facts = msgspec.json.Decoder(PayloadFacts)
        self._order = msgspec.json.Decoder(NewTransfer)
        self.calls: dict[tuple[str, str], int] = {
            (operation, result): 0 for operation in OPERATIONS for result in (OK, *WorkerFault)
        }
        # Cancellations that were given up because too many were under way.
        self.cancels_dropped = 0
        self._retried_before = 0

    @property
    def retried(self) -> int:
        """Attempts beyond the first of a call."""
        return self._retried_before + sum(lane.retried for lane in self._lanes.values())

    def start(self) -> None:
        """Nothing has to be there before the first call."""

    async def stop(self) -> None:
        """Waits for cancellations under way, which are bounded, and closes every connection."""
        self._stopped = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CANCEL_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in list(self._lanes):
            await self._lanes.pop(name).retire()

    async def transfer(
        self, worker: str, order: NewTransfer, *, tenant: str, deadline_s: float
    ) -> TransferFacts:
        """Order a transfer from its destination and wait for its end.

        What the caller need not know is filled in: the source's data address, its token, and the
        worker's own deadline, which is a little shorter than `deadline_s`. The facts may be those
        of a transfer that failed, or that still runs. A caller that is cancelled while it waits,
        or whose time is over, has the transfer cancelled at the worker. Raises WorkerCallError.
        """
        if deadline_s <= 0:
            raise WorkerCallError(WorkerFault.TIMEOUT, "no time is left to ask the worker")
        whole = self._whole(worker, order, tenant, deadline_s)
        body = msgspec.json.encode(whole)
        try:
            self._order.decode(body)
        except msgspec.ValidationError as error:
            raise WorkerCallError(
                WorkerFault.REFUSED, f"the order does not fit the protocol: {error}"
            ) from error
        call = Call(
            "POST",
            ORDERS,
            self._token(transfer_grant(worker, tenant, order), deadline_s),
            deadline_s,
            body,
        )
        try:
            reply = await self._ask("transfer", worker, call)
            return self._counted("transfer", lambda: self._answered(reply, whole))
        except asyncio.CancelledError:
            self._abandon(worker, call, tenant, order)
            raise
        except WorkerCallError as error:
            if error.kind is WorkerFault.TIMEOUT:
                self._abandon(worker, call, tenant, order)
            raise

    async def cancel(
        self, worker: str, order: NewTransfer, *, tenant: str, deadline_s: float = _CANCEL_S
    ) -> None:
        """Stop the transfer if it still runs; one that ended, or never was, stays as it is.

        Raises WorkerCallError.
        """
        _check_id(order.session_id)
        token = self._token(transfer_grant(worker, tenant, order), deadline_s)
        path = f"{ORDERS}/{order.session_id}"
        call = Call("DELETE", path, token, deadline_s, urgent=True)
        reply = await self._ask("cancel", worker, call)
        self._counted("cancel", lambda: _done(reply))

    async def sink(
        self, worker: str, sink_id: str, *, tenant: str, deadline_s: float = _CALL_S
    ) -> SinkFacts | None:
        """The facts of a sink; None when the tenant has none of that id there.

        Raises WorkerCallError.
        """
        if not _ID.fullmatch(sink_id):
            return None
        grant = Grant(worker, tenant, Direction.READ_SINK, sink_id=sink_id)
        call = Call("GET", f"/v1/sinks/{sink_id}", self._token(grant, deadline_s), deadline_s)
        reply = await self._ask("sink", worker, call)
        return self._counted("sink", lambda: self._sink(reply, sink_id, tenant))

    async def payload(
        self, worker: str, payload_id: str, *, tenant: str, deadline_s: float = _CALL_S
    ) -> PayloadFacts | None:
        """The facts of a payload; None when the tenant has none of that id there.

        Raises WorkerCallError.
        """
        if not _ID.fullmatch(payload_id):
            return None
        grant = Grant(worker, tenant, Direction.GET_PAYLOAD, payload_id=payload_id)
        path = f"/v1/payloads/{payload_id}/facts"
        call = Call("GET", path, self._token(grant, deadline_s), deadline_s)
        reply = await self._ask("payload", worker, call)
        return self._counted("payload", lambda: self._payload(reply, payload_id, tenant))

    async def delete_payload(self, worker: str, payload_id: str, *, tenant: str) -> bool:
        """False when there was none. Raises WorkerCallError."""
        if not _ID.fullmatch(payload_id):
            return False
        grant = Grant(worker, tenant, Direction.DELETE_PAYLOAD, payload_id=payload_id)
        path = f"/v1/payloads/{payload_id}"
        call = Call("DELETE", path, self._token(grant, _CALL_S), _CALL_S)
        reply = await self._ask("delete_payload", worker, call)
        return self._counted("delete_payload", lambda: _done(reply))

    def _whole(
        self, worker: str, order: NewTransfer, tenant: str, deadline_s: float
    ) -> NewTransfer:
        margin_s = min(_MAX_MARGIN_S, _MARGIN_RATIO * deadline_s)
        wait_s = min(_MAX_WIRE_S, deadline_s - margin_s / 2)
        source = order.source
        if source.worker != worker:
            source = self._reachable(worker, order, tenant, deadline_s)
        return msgspec.structs.replace(
            order, source=source, wait_s=wait_s, deadline_s=wait_s - margin_s / 2
        )

    def _reachable(
        self, worker: str, order: NewTransfer, tenant: str, deadline_s: float
    ) -> TransferSource:
        """The source with the address that we know it by, whatever the order says of it."""
        source = order.source
        address = self._address(source.worker).data_address
        token = self._token(fetch_grant(worker, tenant, order, address), deadline_s)
        return msgspec.structs.replace(source, data_address=address, token=token)

    def _answered(self, reply: Reply, order: NewTransfer) -> TransferFacts:
        facts = _facts(reply, self._transfer_facts)
        if facts is None:
            raise _refused(reply)
        told = (
            facts.session_id,
            facts.source_worker,
            facts.payload_id,
            facts.target_sink_id,
            facts.target_payload_id,
        )
        asked = (
            order.session_id,
            order.source.worker,
            order.source.payload_id,
            order.target_sink_id,
            order.target_payload_id,
        )
        if told != asked:
            raise WorkerCallError(WorkerFault.GARBAGE, "the facts of another transfer")
        verified = facts.checksum is not None and _CHECKSUM.fullmatch(facts.checksum)
        if facts.bytes_transferred < 0 or (
            facts.status is TransferStatus.COMPLETED and not verified
        ):
            raise WorkerCallError(
                WorkerFault.GARBAGE, "a completed transfer without a checksum, or negative bytes"
            )
        return facts

    def _sink(self, reply: Reply, sink_id: str, tenant: str) -> SinkFacts | None:
        facts = _facts(reply, self._sink_facts)
        if facts is not None and (facts.sink_id, facts.tenant) != (sink_id, tenant):
            raise WorkerCallError(WorkerFault.GARBAGE, "the facts of another sink")
        return facts

    def _payload(self, reply: Reply, payload_id: str, tenant: str) -> PayloadFacts | None:
        facts = _facts(reply, self._payload_facts)
        if facts is not None and (facts.payload_id, facts.tenant) != (payload_id, tenant):
            raise WorkerCallError(WorkerFault.GARBAGE, "the facts of another payload")
        return facts

    def _counted(self, operation: Operation, read: Callable[[], T]) -> T:
        """What `read` makes of the answer; the call counts by how that ends."""
        try:
            value = read()
        except WorkerCallError as error:
            self.calls[operation, error.kind] += 1
            raise
        self.calls[operation, OK] += 1
        return value

    async def _ask(self, operation: Operation, worker: str, call: Call) -> Reply:
        try:
            return await self._lane(self._address(worker)).ask(call)
        except WorkerCallError as error:
            self.calls[operation, error.kind] += 1
            raise

    def _abandon(self, worker: str, call: Call, tenant: str, order: NewTransfer) -> None:
        """Nobody waits for this transfer any more: have the worker stop it, at its leisure."""
        if not call.sent or self._stopped:
            return
        if len(self._tasks) >= _MAX_CANCELS:
            self.cancels_dropped += 1
            return
        task = asyncio.create_task(self._cancel_quietly(worker, tenant, order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel_quietly(self, worker: str, tenant: str, order: NewTransfer) -> None:
        # The worker's own deadline ends a transfer that this does not reach.
        with suppress(WorkerCallError):
            await self.cancel(worker, order, tenant=tenant)

    def _address(self, worker: str) -> WorkerAddress:
        address = self._resolve(worker)
        if address is None:
            raise WorkerCallError(WorkerFault.UNREACHABLE, "there is no worker of this name")
        return address

    def _lane(self, address: WorkerAddress) -> Lane:
        lane = self._lanes.get(address.name)
        if lane is None or lane.url != address.url:
            for name in [n for n in self._lanes if n == address.name or self._resolve(n) is None]:
                self._retire(name)
            lane = Lane(address.url, self._limits, self._trust(address.url))
            self._lanes[address.name] = lane
        return lane

    def _retire(self, name: str) -> None:
        lane = self._lanes.pop(name)
        self._retried_before += lane.retried
        task = asyncio.create_task(lane.retire())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _trust(self, url: str) -> ssl.SSLContext:
        """Shared: reading the trusted certificates takes tens of milliseconds."""
        secure = url.startswith("https:")
        if secure not in self._contexts:
            self._contexts[secure] = (
                ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
        return self._contexts[secure]

    def _token(self, grant: Grant, deadline_s: float) -> str:
        if self._keys is None:
            raise WorkerCallError(
                WorkerFault.UNAUTHORIZED, "no worker secret: set NEXUSKV_WORKER_SECRET"
            )
        return self._keys.sign(
            grant,
            now_s=self._clock.now_us() // _US_PER_S,
            ttl_s=math.ceil(deadline_s) + _TOKEN_SPARE_S,
        )


def _check_id(text: str) -> None:
    if not _ID.fullmatch(text):
        raise WorkerCallError(WorkerFault.REFUSED, "the order does not fit the protocol: its id")


def _facts(reply: Reply, decoder: msgspec.json.Decoder[T]) -> T | None:
    """None for a 404. Raises WorkerCallError."""
    if reply.status == 404:
        return None
    if reply.status >= 400:
        raise _refused(reply)
    try:
        return decoder.decode(reply.body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WorkerCallError(WorkerFault.GARBAGE, f"{error}"[:_MAX_DETAIL_CHARS]) from error


def _done(reply: Reply) -> bool:
    """Whether there was anything to do it to. Raises WorkerCallError."""
    if reply.status >= 400 and reply.status != 404:
        raise _refused(reply)
    return reply.status != 404


def _refused(reply: Reply) -> WorkerCallError:
    try:
        told = msgspec.json.decode(reply.body, type=_Refusal)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        told = _Refusal()
    reason = f"status {reply.status} {told.code}: {told.detail or 'no detail'}"
    return WorkerCallError(WorkerFault.REFUSED, reason[:_MAX_DETAIL_CHARS])
