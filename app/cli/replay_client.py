"""The HTTP side of replay: bounded retries, decoded refusals, and the decision history."""

import asyncio
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from app.clock import Clock

ATTEMPTS = 5
FIRST_BACKOFF_S = 0.1
PAGE_ITEMS = 1000
POLL_S = 0.2
DECISION_HEADER = "x-nexuskv-decision-id"
_T = TypeVar("_T")


class Answer(NamedTuple):
    """A 2xx: its body, how long the successful attempt took, and the decision it recorded."""

    body: bytes
    elapsed_us: int
    decision_id: str | None

    def decoded(self, kind: type[_T]) -> _T:
        """The body as `kind`, unknown fields ignored; raises ReplayError when it is not one."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ReplayError("invalid_answer", f"not a NexusKV answer: {error}") from error


class ReplayError(Exception):
    """A request that failed for good. `fatal` means that every other would fail alike."""

    def __init__(self, code: str, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fatal = fatal


class _BridgeError(msgspec.Struct):
    code: str
    message: str


class _Refusal(msgspec.Struct):
    """Either shape: the bridge's `error` object, or the code and detail of problem+json."""

    error: _BridgeError | None = None
    code: str | None = None
    detail: str | None = None


class _RegistrationError(msgspec.Struct):
    code: str
    detail: str = ""


class _RegistrationResult(msgspec.Struct):
    error: _RegistrationError | None = None


class _RegistrationAnswer(msgspec.Struct):
    results: list[_RegistrationResult]


class _DecisionItem(msgspec.Struct):
    decision_id: str


class _DecisionPage(msgspec.Struct):
    items: list[_DecisionItem]
    next_cursor: str | None = None


class ReplayClient:
    """One service, one key. Transport failures and 503 are tried ATTEMPTS times in all."""

    def __init__(self, http: httpx.AsyncClient, clock: Clock) -> None:
        self._http = http
        self._clock = clock

    async def post(self, path: str, body: bytes) -> Answer:
        """Raises ReplayError where the service refuses or stays away."""
        return await self._send(
            self._http.build_request(
                "POST", path, content=body, headers={"content-type": "application/json"}
            )
        )

    async def register(self, body: bytes) -> None:
        """Registers the states of `body`. Raises ReplayError also where an item is refused."""
        answer = await self.post("/v1/states", body)
        for result in answer.decoded(_RegistrationAnswer).results:
            if result.error is not None:
                raise ReplayError(result.error.code, f"/v1/states: {result.error.detail}")

    async def count_recorded(
        self, decision_ids: set[str], *, filters: dict[str, str], deadline_s: float
    ) -> int:
        """How many of these ids the history lists; polls until all do or the deadline passes.

        The history is flushed in batches behind the answers, hence the polling. `filters` narrow
        the list to where the run's decisions are.
        """
        if not decision_ids:
            return 0
        deadline_us = self._clock.monotonic_us() + int(deadline_s * 1_000_000)
        while True:
            found = await self._listed(decision_ids, filters)
            if found == len(decision_ids) or self._clock.monotonic_us() >= deadline_us:
                return found
            await asyncio.sleep(POLL_S)

    async def _listed(self, decision_ids: set[str], filters: dict[str, str]) -> int:
        oldest = min(decision_ids)
        found = 0
        query: dict[str, str | int] = {**filters, "page_size": PAGE_ITEMS}
        while True:
            request = self._http.build_request("GET", "/v1/decisions", params=query)
            page = (await self._send(request)).decoded(_DecisionPage)
            listed = {item.decision_id for item in page.items}
            found += len(listed & decision_ids)
            # Newest first, and ids are ordered by time: a page that starts before the run's first
            # decision ends the search.
            past_the_run = bool(listed) and max(listed) < oldest
            if page.next_cursor is None or past_the_run or found == len(decision_ids):
                return found
            query["cursor"] = page.next_cursor

    async def _send(self, request: httpx.Request) -> Answer:
        backoff_s = FIRST_BACKOFF_S
        for attempt in range(1, ATTEMPTS + 1):
            last = attempt == ATTEMPTS
            started_us = self._clock.monotonic_us()
            try:
                response = await self._http.send(request)
            except httpx.TransportError as error:
                if last:
                    raise _unreachable(request, error) from error
            else:
                if response.is_success:
                    elapsed_us = self._clock.monotonic_us() - started_us
                    decision_id = response.headers.get(DECISION_HEADER)
                    return Answer(response.content, elapsed_us, decision_id)
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or last:
                    raise _refused(response)
            await asyncio.sleep(backoff_s)
            backoff_s *= 2
        raise AssertionError("the last attempt returns or raises")


def _unreachable(request: httpx.Request, error: httpx.TransportError) -> ReplayError:
    reason = str(error) or type(error).__name__
    return ReplayError("unreachable", f"no answer from {request.url}: {reason}", fatal=True)


def _refused(response: httpx.Response) -> ReplayError:
    fatal = response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
    try:
        refusal = msgspec.json.decode(response.content, type=_Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        refusal = _Refusal()
    if refusal.error is not None:
        code, message = refusal.error.code, refusal.error.message
    else:
        code = refusal.code or f"http_{response.status_code}"
        message = refusal.detail or response.reason_phrase or "no explanation"
    return ReplayError(code, f"{response.request.url.path}: {message}", fatal=fatal)
