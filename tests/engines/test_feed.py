"""What a feed makes of frames and replays, with a real publisher process to ask."""

import asyncio
from contextlib import contextmanager

import msgspec
import pytest

from app.engines.feed import Feed
from app.engines.transport import Transport
from app.engines.views import ViewState
from tests.engines.publisher import BLOCK, Publisher, publishing, tokens_of
from tests.engines.rig import Rig
from tests.lifecycle.in_process import AheadClock

IDLE_S = 0.3


class Fed:
    """A feed whose live frames a test hands over; a publisher process answers its replays."""

    def __init__(self, engine: Publisher, transport: Transport) -> None:
        self.rig, self.clock, self.engine = Rig(), AheadClock(), engine
        self.view = self.rig.engine(
            endpoint=engine.endpoint, replay_endpoint=engine.replay_endpoint
        )
        self.feed = Feed(self.view, transport, self.clock, idle_s=IDLE_S)

    async def live(self, number: int, seed: int = 0) -> None:
        """The frame that the publisher with this seed has under this number."""
        name = 1_000 * (seed + 1) + number
        event = {
            "type": "BlockStored",
            "block_hashes": [name],
            "parent_block_hash": name - 1 if number else None,
            "token_ids": tokens_of(number + 1, seed)[-BLOCK:],
            "block_size": BLOCK,
            "medium": "GPU",
        }
        await self.feed.take(number, msgspec.msgpack.encode([1.5 + number, [event], 0]))

    def reach(self, seed: int = 0) -> int:
        """Blocks of the prompt that are found."""
        return self.rig.reach(tokens_of(2_000, seed)).get("a", 0) // BLOCK


@pytest.fixture
def transport():
    made = Transport()
    yield made
    made.close()


@contextmanager
def fed(transport: Transport, frames: int, **options):
    with publishing(replay_parts=4, **options) as engine:
        engine.drop(frames)
        yield Fed(engine, transport)


async def test_a_gap_takes_only_what_is_missing(transport):
    with fed(transport, 20) as one:
        await one.live(0)
        await one.live(15)
        assert (one.view.last_sequence, one.reach()) == (15, 16)
        assert one.view.state is ViewState.LIVE
        assert one.feed.replays["complete"] == 1


async def test_what_a_replay_brought_is_not_taken_again_when_it_comes_live(transport):
    """More frames than a view remembers may come twice: they are no restart."""
    with fed(transport, 600) as one:
        await one.feed.connected()
        assert (one.view.last_sequence, one.view.epoch, one.feed.proven) == (599, 1, True)
        for number in (100, 101, 598, 599, 600):
            await one.live(number)
        assert (one.view.epoch, one.view.state, one.reach()) == (1, ViewState.LIVE, 601)


async def test_another_process_that_answers_is_no_continuation(transport):
    with fed(transport, 6, seed=5) as one:
        # The old process, whose number 3 the new one has as well.
        for number in range(4):
            await one.live(number)
        await one.feed.connected()
        assert (one.view.epoch, one.reach(), one.reach(seed=5)) == (2, 0, 6)
        assert one.feed.replays["restarted"] == 1


async def test_a_process_with_no_such_frame_is_another_one(transport):
    with fed(transport, 2, seed=5) as one:
        for number in range(4):
            await one.live(number)
        await one.feed.connected()
        assert (one.view.epoch, one.view.state) == (2, ViewState.LIVE)
        assert (one.reach(), one.reach(seed=5)) == (0, 2)


async def test_one_that_has_nothing_at_all_leaves_nothing_certain(transport):
    with fed(transport, 0) as one:
        await one.live(0)
        await one.feed.connected()
        assert one.view.state is ViewState.UNKNOWN
        assert one.reach() == 0


async def test_a_replay_that_fails_is_tried_again_and_then_all_is_known(transport):
    with fed(transport, 10) as one:
        one.engine.hush()
        await one.live(0)
        await one.live(5)
        assert one.view.state is ViewState.UNKNOWN
        assert one.feed.replays["failed"] == 1
        assert "said nothing" in one.feed.last_fault
        await one.feed.retry()
        assert one.feed.replays["failed"] == 2
        one.engine.hush()
        # It waits before it asks again.
        await one.feed.retry()
        assert one.view.state is ViewState.UNKNOWN
        one.clock.advance(31)
        await one.feed.retry()
        assert (one.view.state, one.reach()) == (ViewState.LIVE, 10)


async def test_what_is_not_there_from_the_first_frame_on_is_not_taken_anew(transport):
    with fed(transport, 10, keep=4) as one:
        await one.live(0)
        await one.live(9)
        assert (one.view.state, one.view.last_sequence) == (ViewState.UNKNOWN, 9)
        before = one.view.status()
        await one.feed.retry()
        assert one.view.status() == before


async def test_a_silent_engine_is_asked_whether_it_told_more(transport):
    """The last frames before a silence leave no gap when they are lost."""
    with fed(transport, 5) as one:
        for number in range(3):
            await one.live(number)
        await one.feed.retry()
        assert one.feed.replays["complete"] == 0
        one.clock.advance(61)
        await one.feed.retry()
        assert (one.view.state, one.reach()) == (ViewState.LIVE, 5)


async def test_an_engine_of_another_topic_is_not_taken_for_live(transport):
    with fed(transport, 5, topic="theirs") as one:
        one.feed._topic = b"mine"
        await one.feed.connected()
        assert (one.view.state, one.feed.proven) == (ViewState.PENDING, False)
        assert one.feed.other_topic == "theirs"


async def test_only_so_many_replays_run_at_once(transport):
    with fed(transport, 3) as one:
        for _ in range(8):
            await transport.replaying.acquire()
        waiting = asyncio.create_task(one.feed.connected())
        await asyncio.sleep(0)
        transport.replaying.release()
        async with asyncio.timeout(10):
            await waiting
        assert one.view.last_sequence == 2
