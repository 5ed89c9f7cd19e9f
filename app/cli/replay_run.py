"""One run of a trace: for each request look up, estimate on a hit, register what it computed.

Requests start in the order of the trace. With one worker each finds what all before it
registered, so that the token hit rate is the bound that `trace_format` defines: a lookup with
block granularity reports the leading whole blocks that some earlier request registered, and every
request with new whole blocks registers them. With several workers a request may overtake the
registration it would have used, and the rate may stay below the bound.
"""

import asyncio
from collections.abc import Callable, Iterator

from app.cli.replay_bodies import (
    LookupAnswer,
    ReplayScope,
    estimate_body,
    lookup_body,
    registration_body,
)
from app.cli.replay_client import ReplayClient, ReplayError
from app.cli.replay_tally import Tally
from app.cli.replay_tokens import TokenSource
from app.cli.trace_format import TraceError, TraceItem


class Replay:
    """Drives one service with one trace. `tally` is valid at any time, also after a stop."""

    def __init__(
        self, client: ReplayClient, scope: ReplayScope, *, on_progress: Callable[[Tally], None]
    ) -> None:
        self._client = client
        self._scope = scope
        self._tokens = TokenSource(scope.block_tokens)
        self._on_progress = on_progress
        self._stopping = asyncio.Event()
        self.tally = Tally()
        self.fault: TraceError | ReplayError | None = None

    def stop(self) -> None:
        """Let the requests in flight finish and start no other."""
        self._stopping.set()

    async def run(self, items: Iterator[TraceItem], *, concurrency: int) -> None:
        """Returns when the trace is through, a fault ended it (`fault`), or `stop` was called."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(self._work(items))

    async def _work(self, items: Iterator[TraceItem]) -> None:
        while not self._stopping.is_set():
            try:
                item = next(items, None)
            except TraceError as error:
                self.fault = error
                self.stop()
                return
            if item is None:
                return
            await self._play(item)
            self.tally.count(item)
            self._on_progress(self.tally)

    async def _play(self, item: TraceItem) -> None:
        try:
            matched_tokens = await self._look_up(item)
            await self._register(item, matched_tokens)
        except ReplayError as error:
            self.tally.fail(item.line_number, error)
            if error.fatal:
                self.fault = error
                self.stop()

    async def _look_up(self, item: TraceItem) -> int:
        prompt = self._tokens.whole(item.request)
        answer = await self._client.post("/locus/v1/lookup", lookup_body(self._scope, prompt))
        self.tally.lookup_us.append(answer.elapsed_us)
        self.tally.note_decision(answer.decision_id)
        match = answer.decoded(LookupAnswer).match_result
        if match is None or match.usable_tokens == 0:
            return 0
        self.tally.hits += 1
        self.tally.matched_tokens += match.usable_tokens
        estimate = await self._client.post("/locus/v1/estimate", estimate_body(match))
        self.tally.estimates += 1
        self.tally.note_decision(estimate.decision_id)
        return match.usable_tokens

    async def _register(self, item: TraceItem, matched_tokens: int) -> None:
        stored = self._tokens.full_blocks(item.request)
        if stored is None or stored.token_count <= matched_tokens:
            return  # nothing that the cache does not hold already
        body = registration_body(self._scope, item.request, stored)
        await self._client.register(body)
        self.tally.states_registered += 1
