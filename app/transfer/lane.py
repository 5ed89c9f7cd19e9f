"""The connections to one worker: bounded calls in flight, bounded waiting, bounded retries.

Nothing is shared between lanes, so a worker that hangs can only fill its own.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

import aiohttp
import httpx

from app.transfer.connections import is_no_http, worker_transport
from app.transfer.faults import WorkerCallError, WorkerFault

ORDERS: Final = "/v1/transfers"
MAX_ANSWER_BYTES: Final = 64 * 1024
_UNAUTHORIZED: Final = frozenset({401, 403})
_OVERLOADED: Final = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Of one worker. Retries are earned by calls: `retry_ratio` each, `retry_burst` at most."""

    in_flight: int = 64
    waiting: int = 256
    wait_s: float = 1.0
    # Cancellations have places of their own: they matter most when all others are taken.
    urgent: int = 8
    connect_s: float = 1.0
    retry_ratio: float = 0.1
    retry_burst: int = 5
    retries_of_a_call: int = 2
    backoff_s: float = 0.02
    # Workers close an idle connection after 75 s; ours must not be the later end.
    idle_s: float = 30.0


@dataclass(slots=True)
class Call:
    """One request; `sent` says whether the worker may have seen it."""

    method: str
    path: str
    token: str
    deadline_s: float
    body: bytes | None = None
    urgent: bool = False
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer that is neither a redirect nor a refusal of our token or our number."""

    status: int
    body: bytes


class _Places:
    """A bounded number of calls at once, and of those that wait for their turn."""

    def __init__(self, places: int, waiting: int, wait_s: float) -> None:
        self._free = asyncio.Semaphore(places)
        self._waiting_left = waiting
        self._wait_s = wait_s

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[None]:
        """Raises WorkerCallError when none becomes free soon."""
        if self._free.locked():
            await self._wait()
        else:
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self) -> None:
        if self._waiting_left <= 0:
            raise WorkerCallError(WorkerFault.OVERLOADED, "too many calls wait for this worker")
        self._waiting_left -= 1
        try:
            async with asyncio.timeout(self._wait_s) as limit:
                await self._free.acquire()
        except TimeoutError:
            if not limit.expired():
                raise
            raise WorkerCallError(
                WorkerFault.OVERLOADED, f"no call to this worker ended within {self._wait_s:g} s"
            ) from None
        finally:
            self._waiting_left += 1


class Lane:
    """Calls to one worker at one URL."""

    def __init__(self, url: str, limits: LaneLimits, context: ssl.SSLContext) -> None:
        self.url = url
        self._limits = limits
        self._base = httpx.URL(url)
        # Most calls go there, and putting a URL together costs a tenth of a call.
        self._orders = self._base.copy_with(raw_path=ORDERS.encode())
        self._transport = worker_transport(
            context, connections=limits.in_flight + limits.urgent, idle_s=limits.idle_s
        )
        self._places = _Places(limits.in_flight, limits.waiting, limits.wait_s)
        self._urgent = _Places(limits.urgent, limits.urgent, limits.wait_s)
        self._retries = float(limits.retry_burst)
        self._calls = 0
        self._retired = False
        self.retried = 0

    async def ask(self, call: Call) -> Reply:
        """The worker's answer, of any status but those that are faults. Raises WorkerCallError."""
        self._calls += 1
        try:
            async with asyncio.timeout(call.deadline_s) as limit:
                places = self._urgent if call.urgent else self._places
                async with places.one():
                    return await self._try(call)
        except TimeoutError:
            if not limit.expired():
                raise
            raise WorkerCallError(
                WorkerFault.TIMEOUT, f"no answer within {call.deadline_s:g} s"
            ) from None
        finally:
            self._calls -= 1
            if self._retired and not self._calls:
                await self._transport.aclose()

    async def retire(self) -> None:
        """Close once the calls that run have ended; no call may begin any more."""
        self._retired = True
        if not self._calls:
            await self._transport.aclose()

    async def _try(self, call: Call) -> Reply:
        limits = self._limits
        self._retries = min(limits.retry_burst, self._retries + limits.retry_ratio)
        tries_left = limits.retries_of_a_call
        backoff_s = limits.backoff_s
        while True:
            try:
                return await self._once(call)
            except WorkerCallError as error:
                # Every call of ours may be repeated; only a broken connection is worth it.
                if error.kind is not WorkerFault.UNREACHABLE or not tries_left:
                    raise
                if self._retries < 1:
                    raise
            self._retries -= 1
            tries_left -= 1
            self.retried += 1
            await asyncio.sleep(backoff_s)
            backoff_s *= 2

    async def _once(self, call: Call) -> Reply:
        headers = {
            "authorization": f"Bearer {call.token}",
            "accept": "application/json",
            # A compressed answer could be small here and huge when unpacked.
            "accept-encoding": "identity",
        }
        if call.body is not None:
            headers["content-type"] = "application/json"
        request = httpx.Request(
            call.method,
            self._orders
            if call.path == ORDERS
            else self._base.copy_with(raw_path=call.path.encode()),
            headers=headers,
            content=call.body,
            extensions={"timeout": {"connect": self._limits.connect_s}},
        )
        call.sent = True
        try:
            response = await self._transport.handle_async_request(request)
            try:
                body = await _body(response)
            finally:
                await response.aclose()
        except (httpx.TransportError, aiohttp.ClientError, OSError, UnicodeError) as error:
            kind = WorkerFault.GARBAGE if is_no_http(error) else WorkerFault.UNREACHABLE
            raise WorkerCallError(kind, _cause(error)) from error
        return _judged(response.status_code, body)


async def _body(response: httpx.Response) -> bytes:
    collected = bytearray()
    async for chunk in cast("AsyncIterable[bytes]", response.stream):
        collected += chunk
        if len(collected) > MAX_ANSWER_BYTES:
            raise WorkerCallError(
                WorkerFault.GARBAGE, f"an answer of more than {MAX_ANSWER_BYTES} bytes"
            )
    return bytes(collected)


def _judged(status: int, body: bytes) -> Reply:
    if status in _UNAUTHORIZED:
        raise WorkerCallError(
            WorkerFault.UNAUTHORIZED,
            f"status {status}: do the API and the worker have the same secret and time?",
        )
    if status in _OVERLOADED:
        raise WorkerCallError(WorkerFault.OVERLOADED, f"status {status}")
    if not 200 <= status < 300 and not 400 <= status < 600:
        raise WorkerCallError(WorkerFault.GARBAGE, f"status {status} is not of this protocol")
    return Reply(status, body)


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]
