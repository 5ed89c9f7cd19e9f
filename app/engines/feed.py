"""What comes of an engine's frames: those that were lost are asked for before one is taken.

A replay begins with the frame that was taken last, although that is known: only its bytes tell that
who answers is still the process that published it.
"""

import asyncio
from contextlib import aclosing
from typing import Final, NamedTuple

import structlog
from xxhash import xxh3_64_intdigest

from app.clock import Clock
from app.engines.catch_up import IDLE_S, Replayed, ReplayError, replayed
from app.engines.transport import REPLAY_RESULTS, Transport
from app.engines.views import EngineView, ViewState

# After a replay that did not fill a gap all is asked for again, more and more seldom.
_AGAIN_LEAST_US: Final = 30_000_000
_AGAIN_MOST_US: Final = 600_000_000
# A silent engine is asked this often whether it has told more than came.
_PROBE_US: Final = 60_000_000
# Of a replay's last frames: what of them comes live as well is not taken twice.
_MAX_OVERLAP: Final = 65_536
_RESTARTED: Final = "restarted"
_COMPLETE: Final = "complete"
log = structlog.get_logger("nexuskv.engines")


class _Tail(NamedTuple):
    """The frame taken last."""

    number: int
    digest: int


class Feed:
    """Takes one engine's frames into its view. `proven`: whether all that the present peer has
    published is known to be here, so that its silence means that nothing changed. `writing` is held
    while the index is changed."""

    def __init__(
        self,
        view: EngineView,
        transport: Transport,
        clock: Clock,
        *,
        idle_s: float = IDLE_S,
        writing: asyncio.Lock | None = None,
    ) -> None:
        self.proven = False
        self.replays = dict.fromkeys(REPLAY_RESULTS, 0)
        self.last_fault: str | None = None
        self.other_topic: str | None = None
        self._view = view
        self._topic = view.spec.topic.encode()
        self._endpoint = view.spec.replay_endpoint
        self._transport = transport
        self._clock = clock
        self._idle_s = idle_s
        # Whoever takes frames in holds it: the reader of the socket, or a replay.
        self._taking = asyncio.Lock()
        self._writing = asyncio.Lock() if writing is None else writing
        self._tail = None if view.tail is None else _Tail(*view.tail)
        self._overlap: dict[int, int] = {}
        self._again_at_us = 0
        self._fed_at_us = clock.monotonic_us()
        self._pause_us = _AGAIN_LEAST_US

    async def take(self, number: int, payload: bytes) -> None:
        """A frame that came from the socket."""
        async with self._taking:
            if self._view.awaits_proof and self._endpoint is not None:
                await self._prove()
            if self._overlap and self._came_already(number, payload):
                return
            lost = self._view.missing(number, payload)
            if lost is not None and self._endpoint is not None:
                async with self._transport.replaying:
                    await self._fill(lost)
            await self._feed(number, payload)

    async def connected(self) -> None:
        """A peer is there: take in what it published before, where it can be asked for."""
        if self._endpoint is None:
            return
        async with self._taking, self._transport.replaying:
            await self._catch_up()

    async def retry(self) -> None:
        """Once it is time again: ask for what is missing since a replay that did not succeed, or
        for what an engine that fell silent may have told last."""
        now_us = self._clock.monotonic_us()
        if self._endpoint is None or now_us < self._again_at_us:
            return
        unknown = self._view.state is ViewState.UNKNOWN and not self._view.awaits_proof
        if self.proven and not unknown and now_us - self._fed_at_us < _PROBE_US:
            return
        self._fed_at_us = now_us
        async with self._taking, self._transport.replaying:
            if unknown:
                await self._rebuild()
            else:
                await self._catch_up()
        if self._view.state is not ViewState.UNKNOWN and self.proven:
            self._pause_us = _AGAIN_LEAST_US
            return
        self._again_at_us = self._clock.monotonic_us() + self._pause_us
        self._pause_us = min(2 * self._pause_us, _AGAIN_MOST_US)

    # ---- frames

    def _came_already(self, number: int, payload: bytes) -> bool:
        if self._overlap.pop(number, None) == xxh3_64_intdigest(payload):
            return True
        # Beyond the replay, or of another process: from here on the view can tell.
        self._overlap.clear()
        return False

    async def _feed(self, number: int, payload: bytes) -> None:
        async with self._writing:
            try:
                self._view.take(number, payload, now_us=self._clock.now_us())
            except Exception:
                # The frame is as good as lost; those after it are not.
                log.exception("engine_frame_failed", instance_id=self._view.spec.instance_id)
                self._view.doubt()
        self._tail = _Tail(number, xxh3_64_intdigest(payload))
        self._fed_at_us = self._clock.monotonic_us()
        self.proven = True

    # ---- replays

    async def _prove(self) -> None:
        """A frame came before a replay told whether it is of the process that was saved: a number
        that fits is no proof for an engine that can be asked."""
        async with self._transport.replaying:
            await self._catch_up()
        if self._view.awaits_proof:
            await self._doubt()

    async def _doubt(self) -> None:
        async with self._writing:
            self._view.doubt()

    async def _fill(self, lost: range) -> None:
        """Frames that are missing before one that came, as far as they can be got."""
        tail = self._tail
        result = _RESTARTED
        if tail is not None and lost.start == tail.number + 1:
            result = await self._ask(tail.number, lost.stop, tail)
        if result == _RESTARTED:
            await self._ask(0, lost.stop)

    async def _catch_up(self) -> None:
        tail = self._tail
        result = await self._ask(0 if tail is None else tail.number, None, tail)
        if tail is not None and result in {_RESTARTED, "empty"}:
            # Who has nothing of that number is another process, too.
            result = await self._ask(0, None)
            if result == "empty":
                await self._doubt()
        if result in {_COMPLETE, "empty"}:
            self.proven = True

    async def _rebuild(self) -> None:
        """Everything from the first frame on, as a new epoch; nothing where it is not all there."""
        if await self._ask(0, None, whole=True) == _COMPLETE:
            self.proven = True

    async def _ask(
        self, start: int, before: int | None, tail: _Tail | None = None, *, whole: bool = False
    ) -> str:
        """Take in replayed frames, up to `before`; how the replay ended: one of REPLAY_RESULTS.

        With a tail the first one is to be that very frame. `whole`: only if it begins at `start`.
        """
        try:
            result = await self._replay(start, before, tail, whole=whole)
        except ReplayError as error:
            result, self.last_fault = "failed", str(error)
            log.warning(
                "engine_replay_failed",
                instance_id=self._view.spec.instance_id,
                fault=self.last_fault,
            )
        self.replays[result] += 1
        self._transport.results[result] += 1
        return result

    async def _replay(
        self, start: int, before: int | None, tail: _Tail | None, *, whole: bool
    ) -> str:
        assert self._endpoint is not None
        due, some, gaps = start, False, 0
        asked = replayed(self._transport, self._endpoint, start, idle_s=self._idle_s)
        async with aclosing(asked) as frames:
            async for one in frames:
                first, some = not some, True
                if first and whole:
                    if one.number != start:
                        return "partial"
                    self._view.expect_anew()
                if before is not None and one.number >= before:
                    break
                if first and tail is not None and one.number == start:
                    if xxh3_64_intdigest(one.payload) != tail.digest:
                        return _RESTARTED
                    async with self._writing:
                        self._view.confirm(self._clock.now_us())
                else:
                    if self._view.awaits_proof and tail is not None:
                        # It has that frame no more: nothing tells whose these are.
                        await self._doubt()
                    await self._take_replayed(one, keep=before is None)
                gaps += one.number != due
                due = one.number + 1
                await asyncio.sleep(0)
        if not some:
            return "empty"
        return "partial" if gaps or (before is not None and due < before) else _COMPLETE

    async def _take_replayed(self, one: Replayed, *, keep: bool) -> None:
        if one.topic is not None and not one.topic.startswith(self._topic):
            # None of its frames would come live: what it holds would never change here.
            self.other_topic = one.topic.decode("utf-8", "replace")
            raise ReplayError(f"the engine's topic is {self.other_topic!r}")
        await self._feed(one.number, one.payload)
        if keep and self._tail is not None:
            self._overlap[one.number] = self._tail.digest
            if len(self._overlap) > _MAX_OVERLAP:
                del self._overlap[next(iter(self._overlap))]
