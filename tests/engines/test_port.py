"""A writer and its readers over their socket: in step after every write, and unknown without it."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from app.clock import SystemClock, SystemIds
from app.db.session import Database
from app.engines.answers import Match
from app.engines.intake import Pushed
from app.engines.matching import EngineMatcher
from app.engines.mirror import EngineMirror
from app.engines.parts import OwnIndex, own_index
from app.engines.plans import Filter
from app.engines.port_client import ForwardedIntake, IndexPortClient
from app.engines.port_server import IndexPort
from app.engines.port_wire import LEASE_US, MAX_MESSAGE_BYTES, MAX_OUTSTANDING, Seen, Sums, framed
from app.engines.registration import EngineKey, EngineSpec
from app.engines.slices import Slices
from app.engines.spaces import Spaces
from app.engines.totals import EngineTotals
from app.errors import ErrorCode, FieldError, NexusError
from app.index.scopes import TenantHashing
from app.settings import Settings
from nexuskv_core import BlockIndex
from tests.engines.rig import BLOCK, SECRET, Rig, at_once, prompt, told
from tests.engines.wires import CLEARED, packed, removed

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
STALE_US = 30_000_000
DEADLINE_S = 10.0


def tokens_of(prompted: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in prompted)


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not look():
            await asyncio.sleep(0.01)


class AheadClock(SystemClock):
    """The machine's, with a monotonic reading that can be put ahead."""

    ahead_us = 0

    def monotonic_us(self) -> int:
        return super().monotonic_us() + self.ahead_us


class Writer:
    """The index and its port, without a table of engines."""

    def __init__(self, path: Path, database: Database) -> None:
        settings = Settings(database_url=NOWHERE, handle_secret="-")
        hashing = TenantHashing(SECRET)
        self.own: OwnIndex = own_index(
            settings, database, SystemClock(), SystemIds(), hashing, shared=True
        )
        # It began so long ago that nobody goes by what an earlier one said.
        clock = AheadClock()
        clock.ahead_us = -LEASE_US
        self.port = IndexPort(path, self.own, clock)
        clock.ahead_us = 0
        self.matcher = EngineMatcher(self.own.core, self.own.directory, self.own.spaces)

    def apply(self, name: str, **fields: Any) -> None:
        given = {"model": "m", "block_tokens": BLOCK, "tenants": ("t",)} | fields
        self.own.directory.apply(EngineSpec(instance_id=name, **given), SystemClock().now())


class Reader:
    """One that follows it."""

    def __init__(self, path: Path) -> None:
        self.clock = AheadClock()
        self.mirror = EngineMirror(self.clock, STALE_US)
        self.client = IndexPortClient(path, self.mirror)
        self.intake = ForwardedIntake(self.client)
        spaces = Spaces(TenantHashing(SECRET))
        self.matcher = EngineMatcher(
            BlockIndex(max_blocks=1), self.mirror, spaces, away=self.mirror.away
        )
        self.mirror.follow = self.matcher.follow

    async def push(self, name: str, number: int, *events: Any, lost: bool = False) -> Pushed:
        payload = packed(*events, at_s=number + 0.5)
        return await self.intake.take(EngineKey(name), number, payload, lost=lost)


def ask(matcher: EngineMatcher, prompted: list[int], now_us: int = 0) -> Match:
    now_us = now_us or SystemClock().now_us()
    return matcher.match(Filter("t", "m"), tokens_of(prompted), now_us=now_us)


def reach(matcher: EngineMatcher, seed: int) -> tuple[str, int, list[tuple[str, int]]]:
    """The short form of an answer."""
    now_us = SystemClock().now_us()
    tokens = tokens_of(prompt(6, seed))
    result, asked, found = at_once(
        matcher.reached_in_slices(Filter("t", "m"), tokens, Slices(), now_us=now_us)
    )
    return (
        result,
        asked,
        [(share.seen.view.spec.instance_id, share.reach.tokens) for share in found],
    )


def timeless(match: Match) -> Match:
    """Without the publisher's lag, and when it was heard: a reader has these with a delay."""
    candidates = [
        msgspec.structs.replace(each, lag_us=None, age_us=None) for each in match.candidates
    ]
    return msgspec.structs.replace(match, candidates=candidates)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sock"


@asynccontextmanager
async def writing(path: Path) -> AsyncIterator[Writer]:
    database = Database(NOWHERE, pool_connections=1)
    made = Writer(path, database)
    made.port.start()
    try:
        yield made
    finally:
        await made.port.stop()
        await made.own.directory.stop()
        await database.close()


@asynccontextmanager
async def reading(path: Path, count: int = 1) -> AsyncIterator[list[Reader]]:
    async with AsyncExitStack() as stack:
        made = [Reader(path) for _ in range(count)]
        for reader in made:
            reader.client.start()
            stack.push_async_callback(reader.client.stop)
        await until(lambda: not any(reader.mirror.away() for reader in made))
        yield made


class Talk:
    """Engines that say all kinds of things, handed over by one reader or another."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.numbers: dict[str, int] = {}

    async def step(self, writer: Writer, reader: Reader) -> None:
        choose = self.choose
        name = choose.choice("abc")
        if name not in self.numbers or choose.random() < 0.05:
            if name in self.numbers:
                writer.own.directory.drop(EngineKey(name))
            writer.apply(name)
            self.numbers[name] = -1
        number, lost = self.numbers[name] + 1, False
        if choose.random() < 0.08:
            number, lost = number + 2, True
        if choose.random() < 0.05:
            number = 0
        events = [self.event() for _ in range(choose.randrange(3))]
        await reader.push(name, number, *events, lost=lost)
        engine = writer.own.directory.get(EngineKey(name))
        assert engine is not None
        last = engine.view.last_sequence
        self.numbers[name] = -1 if last is None else last

    def event(self) -> Any:
        choose = self.choose
        seed, blocks = choose.randrange(3), choose.randrange(1, 7)
        first = 100 * seed + 1
        if choose.random() < 0.25:
            return removed([first + choose.randrange(6)])
        if choose.random() < 0.1:
            return CLEARED
        medium = choose.choice(["GPU", "CPU"])
        return told(prompt(blocks, seed), first, medium=medium)


@pytest.mark.parametrize("seed", range(4))
async def test_readers_answer_as_the_writer_does_after_every_write(path, seed) -> None:
    talk = Talk(seed)
    async with writing(path) as writer, reading(path, 2) as readers:
        for _ in range(80):
            await talk.step(writer, talk.choose.choice(readers))
            now_us = SystemClock().now_us()
            for number in range(3):
                expected = timeless(ask(writer.matcher, prompt(6, number), now_us))
                for reader in readers:
                    assert timeless(ask(reader.matcher, prompt(6, number), now_us)) == expected
                    assert reach(reader.matcher, number) == reach(writer.matcher, number)
        hits = [ask(writer.matcher, prompt(6, number)).result for number in range(3)]
        assert hits, "the last state is compared with something"
        assert writer.port.readers_cut == 0


async def test_what_nobody_handed_over_is_known_soon(path) -> None:
    async with writing(path) as writer, reading(path) as [reader]:
        writer.apply("a")
        await until(lambda: ask(reader.matcher, prompt(2)).reason == "engine_not_live")
        payload = packed(told(prompt(2)))
        writer.own.intake.push(EngineKey("a"), 0, payload, lost=False)
        await until(lambda: ask(reader.matcher, prompt(2)).result == "hit")
        [view] = writer.own.directory.views()
        view.doubt()
        # At once, though no catalogue has said so: its streams are closed.
        assert ask(reader.matcher, prompt(2)).reason == "engine_not_live"


async def test_a_reader_that_knows_of_nothing_new_answers_unknown(path) -> None:
    async with writing(path) as writer, reading(path) as [reader]:
        writer.apply("a")
        await reader.push("a", 0, told(prompt(2)))
        assert ask(reader.matcher, prompt(2)).result == "hit"
        reader.clock.ahead_us = LEASE_US + 1
        found = ask(reader.matcher, prompt(2))
        assert (found.result, found.reason, found.engines.asked) == ("unknown", "index_away", 1)
        with pytest.raises(NexusError, match="away"):
            reader.mirror.engines()
        reader.clock.ahead_us = 0
        assert ask(reader.matcher, prompt(2)).result == "hit"


async def test_a_reader_finds_the_next_writer_and_forgets_what_the_last_one_had(path) -> None:
    async with reading_later(path) as reader:
        assert ask(reader.matcher, prompt(2)).reason == "index_away"
        with pytest.raises(NexusError) as refused:
            await reader.push("a", 0)
        assert refused.value.code is ErrorCode.INDEX_AWAY
        async with writing(path) as first:
            await until(lambda: not reader.mirror.away())
            first.apply("a")
            first.apply("b", model="other")
            await reader.push("a", 0, told(prompt(3)))
            assert ask(reader.matcher, prompt(3)).matched_tokens == 3 * BLOCK
        await until(reader.mirror.away)
        assert ask(reader.matcher, prompt(3)).reason == "index_away"
        async with writing(path) as second:
            await until(lambda: not reader.mirror.away())
            assert ask(reader.matcher, prompt(3)).reason == "no_engine"
            second.apply("c")
            # The numbers of its streams and holders are those that meant others before.
            await reader.push("c", 0, told(prompt(1), medium="CPU"))
            found = ask(reader.matcher, prompt(3))
            assert [(one.instance_id, one.matched_tokens) for one in found.candidates] == [
                ("c", BLOCK)
            ]
            assert list(found.candidates[0].tiers) == ["cpu"]
        assert reader.client.reconnects == 1


@asynccontextmanager
async def reading_later(path: Path) -> AsyncIterator[Reader]:
    made = Reader(path)
    made.client.start()
    try:
        yield made
    finally:
        await made.client.stop()


async def test_a_catalogue_of_many_messages_is_known_whole(path) -> None:
    async with writing(path) as writer:
        for number in range(12):
            salts = {f"{salt:04}".ljust(512, "s"): "t" for salt in range(1_024)}
            writer.apply(f"e{number}", tenants=("t", "u"), salts=salts)
        async with reading(path) as [reader]:
            assert len(reader.mirror.engines()) == 12
            assert [each.spec for each in reader.mirror.engines()] == [
                each.spec for each in writer.own.directory.engines()
            ]


# ---- who does not keep to it


def connected(path: Path) -> socket.socket:
    """A reader that does nothing more."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(str(path))
    return made


async def test_a_reader_that_never_sees_a_change_is_cut_off(path) -> None:
    async with writing(path) as writer, reading(path) as [reader]:
        writer.apply("a")
        with connected(path) as silent:
            began_us = SystemClock().monotonic_us()
            pushes = [
                asyncio.create_task(reader.push("a", number, told(prompt(2))))
                for number in range(MAX_OUTSTANDING)
            ]
            await asyncio.sleep(0)  # Each has its turn, and is handed over.
            with pytest.raises(NexusError) as refused:
                await reader.push("a", MAX_OUTSTANDING)
            assert refused.value.code is ErrorCode.OVERLOADED
            assert all(pushed.applied == 1 for pushed in await asyncio.gather(*pushes))
            # By then the silent one, had it hung, would know that it knows nothing.
            assert SystemClock().monotonic_us() - began_us > LEASE_US
            assert writer.port.readers_cut == 1
            silent.setblocking(False)
            await until(lambda: ended(silent))
        assert not reader.mirror.away()


def ended(connection: socket.socket) -> bool:
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


@pytest.mark.parametrize(
    "said",
    [
        (MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"),
        b"\x04\0\0\0\xff\xff\xff\xff",
        framed(Seen(1))[:4] + bytes(len(framed(Seen(1))) - 4),
    ],
)
async def test_what_is_no_message_ends_that_connection_alone(path, said) -> None:
    async with writing(path) as writer, reading(path) as [reader]:
        with connected(path) as strange:
            strange.sendall(said)
            strange.setblocking(False)
            await until(lambda: ended(strange))
        writer.apply("a")
        await reader.push("a", 0, told(prompt(2)))
        assert ask(reader.matcher, prompt(2)).result == "hit"


async def test_an_answer_that_cannot_be_packed_is_an_error(path, monkeypatch) -> None:
    async def unpackable(_: object) -> object:
        return [2**64]

    async def refusing(_: object) -> object:
        error = FieldError("/a", ErrorCode.INVALID_FIELD, "-", 2**64)
        raise NexusError(ErrorCode.INVALID_FIELD, "-", errors=[error])

    async with writing(path) as writer, reading(path) as [reader]:
        writer.apply("a")
        for answer in (unpackable, refusing):
            monkeypatch.setattr(writer.own.intake, "statuses", answer)
            with pytest.raises(NexusError) as failed:
                await reader.intake.statuses([EngineKey("a")])
            assert failed.value.code is ErrorCode.INTERNAL_ERROR
        monkeypatch.undo()
        assert len(await reader.intake.statuses([EngineKey("a")])) == 1
        await reader.push("a", 0, told(prompt(2)))
        assert ask(reader.matcher, prompt(2)).result == "hit"


def test_what_is_asked_over_a_connection_that_has_ended_is_index_away(path) -> None:
    async def story() -> None:
        async with writing(path) as writer, reading(path) as [reader]:
            writer.apply("a")
            # The reader's own loop is yet to hear of it.
            reader.client._stream.transport.abort()
            with pytest.raises(NexusError) as refused:
                await reader.push("a", 0)
            assert refused.value.code is ErrorCode.INDEX_AWAY

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


def test_sums_stay_within_what_can_be_sent() -> None:
    rig = Rig()
    view = rig.engine()
    for number in (2**63 - 1, 0) * 4:
        view.take(number, packed(at_s=number % 7 + 0.5), now_us=1)
    totals = EngineTotals()
    for _ in range(3):
        totals.add(view.status())
    framed(Sums({}, totals, {}, 0))
    assert totals.lost_frames >= 2**62


async def test_something_else_at_the_socket_is_no_writer(path) -> None:
    async def greet(_: asyncio.StreamReader, stream: asyncio.StreamWriter) -> None:
        stream.write(b"HTTP/1.1")
        greeted.append(stream)
        await stream.drain()
        stream.close()

    greeted: list[asyncio.StreamWriter] = []
    other = await asyncio.start_unix_server(greet, path)
    async with reading_later(path) as reader:
        await until(lambda: len(greeted) > 1)
        assert ask(reader.matcher, prompt(2)).reason == "index_away"
    other.close()
    await other.wait_closed()
