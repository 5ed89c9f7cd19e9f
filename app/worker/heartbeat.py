"""Tells the API once a second that this worker is there, what it holds, and what happened.

The worker does not depend on it: without an API it works on, and its news wait in the outbox.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import httpx
import msgspec
import structlog

from app.clock import Clock, IdSource
from app.contract.enums import TierKind
from app.transfer.tokens import API_AUDIENCE, Direction, Grant, TokenKeys
from app.transfer.wire import WORKER_SCHEMA, Heartbeat, HeartbeatAnswer, WorkerLoad
from app.worker.movement import BACKENDS
from app.worker.outbox import Outbox

TIMEOUT_S: Final = 5.0
_TOKEN_S: Final = 60
_FIRST_BACKOFF_S: Final = 0.5
# Below the silence that makes a worker unavailable: after an outage of the API it is heard in time.
_MOST_BACKOFF_S: Final = 2.0
# An API that stops often takes its workers along a moment later; a pause that short is no warning.
_LOUD_AFTER: Final = 5
# One warning a minute, about, while it stays away.
_LOUD_EVERY: Final = 30
# Whatever the API asks for: no busy loop, and no silence that looks like death.
_LEAST_PERIOD_S: Final = 0.1
_MOST_PERIOD_S: Final = 10.0

# Of what an API, or whoever answers in its place, says of a refusal.
_MAX_DETAIL_CHARS: Final = 500
_ADVICE: Final = {
    "unauthorized": "do the API and this worker have the same NEXUSKV_WORKER_SECRET?",
    "worker_host_not_allowed": "set NEXUSKV_WORKER_HOSTS of the API",
    "worker_name_taken": "is another worker of this --node running?",
    "workers_not_configured": "set NEXUSKV_WORKER_SECRET of the API",
}

_log = structlog.get_logger("nexuskv.worker.heartbeat")


class _Problem(msgspec.Struct):
    """The part of a problem document that says why."""

    code: str
    detail: str


class _RefusedError(Exception):
    """The API did not take a heartbeat; the text says why and what may help."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self.code: str | None = None
        said = answer.reason_phrase
        try:
            problem = msgspec.json.decode(answer.content, type=_Problem)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        else:
            self.code = problem.code[:_MAX_DETAIL_CHARS]
            said = f"{self.code}: {problem.detail[:_MAX_DETAIL_CHARS]}"
            if advice := _ADVICE.get(self.code):
                said = f"{said} ({advice})"
        super().__init__(f"the API answered {self.status} {said}")


def _taken(answer: httpx.Response) -> HeartbeatAnswer:
    """Raises _RefusedError, msgspec.DecodeError."""
    if not answer.is_success:
        raise _RefusedError(answer)
    return msgspec.json.decode(answer.content, type=HeartbeatAnswer)


class Heartbeats:
    """The sender. `run` goes on until it is cancelled; `send` is one beat."""

    def __init__(
        self,
        api_url: str,
        keys: TokenKeys,
        outbox: Outbox,
        clock: Clock,
        ids: IdSource,
        *,
        node: str,
        instance_id: str,
        url: str,
        data_address: str,
        load: Callable[[], WorkerLoad],
    ) -> None:
        self._target = f"{api_url.rstrip('/')}/v1/workers/{node}"
        self._keys = keys
        self._outbox = outbox
        self._clock = clock
        self._ids = ids
        self._node = node
        self._instance_id = instance_id
        self._url = url
        self._data_address = data_address
        self._load = load
        # What a proxy of the environment answers is not what the API says.
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)
        self.sent = 0
        self.failed = 0
        # The worker is about to end: an API that is gone already is no news.
        self.stopping = False
        self._in_a_row = 0

    async def run(self) -> None:
        """Beat every period, at once when there are news; after a failure later and later."""
        while True:
            period_s = await self.send()
            if period_s is None:
                await asyncio.sleep(self._backoff_s(self._in_a_row))
                continue
            try:
                async with asyncio.timeout(period_s):
                    await self._outbox.wake.wait()
            except TimeoutError:
                continue

    async def send(self) -> float | None:
        """Beat once; seconds until the next one is due, None when this one was not taken."""
        news = self._outbox.news()
        beat = Heartbeat(
            schema_version=WORKER_SCHEMA,
            instance_id=self._instance_id,
            url=self._url,
            data_address=self._data_address,
            backends=BACKENDS,
            tiers=(TierKind.HOST_DRAM,),
            load=self._load(),
            events=news.events,
            gone_payloads=news.gone_payloads,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self._client.put(
                    self._target,
                    content=msgspec.json.encode(beat),
                    headers={
                        "authorization": f"Bearer {self._token()}",
                        "content-type": "application/json",
                    },
                )
            taken = _taken(answer)
        except (httpx.HTTPError, TimeoutError, msgspec.DecodeError, _RefusedError) as error:
            self.failed += 1
            self._in_a_row += 1
            write = _log.warning if self._is_news(error) else _log.info
            write(
                "heartbeat_failed",
                reason=str(error) or type(error).__name__,
                code=error.code if isinstance(error, _RefusedError) else None,
                in_a_row=self._in_a_row,
            )
            return None
        self.sent += 1
        self._in_a_row = 0
        self._outbox.taken(taken.accepted_events, news)
        return min(max(taken.heartbeat_s, _LEAST_PERIOD_S), _MOST_PERIOD_S)

    async def flush(self) -> None:
        """Send what is left, as far as the API takes it."""
        while self._outbox.pending:
            before = self._outbox.pending
            if await self.send() is None or self._outbox.pending >= before:
                _log.error("sink_events_lost", events=self._outbox.pending)
                return

    async def close(self) -> None:
        await self._client.aclose()

    def _token(self) -> str:
        grant = Grant(API_AUDIENCE, self._node, Direction.REGISTER)
        return self._keys.sign(grant, now_s=self._clock.now_us() // 1_000_000, ttl_s=_TOKEN_S)

    def _is_news(self, error: Exception) -> bool:
        """Whether somebody should look: the API refuses this worker, or is away for a while."""
        if isinstance(error, _RefusedError) and error.status < 500:
            return True
        loud = self._in_a_row == _LOUD_AFTER or self._in_a_row % _LOUD_EVERY == 0
        return loud and not self.stopping

    def _backoff_s(self, failures: int) -> float:
        """Twice as long each time, up to a limit; between half of that and all of it."""
        longest_s = min(_FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 10), _MOST_BACKOFF_S)
        return longest_s * (0.5 + self._ids.random_bytes(1)[0] / 510)
