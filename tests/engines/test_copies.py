"""An index that is read from a copy: hidden until it is proven that no frame is missing since."""

import asyncio
import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.clock import SystemClock, SystemIds
from app.db.session import Database
from app.engines.answers import Match
from app.engines.matching import EngineMatcher
from app.engines.parts import own_index
from app.engines.plans import Filter
from app.engines.registration import EngineKey, EngineSpec
from app.engines.views import ViewState
from app.index.scopes import TenantHashing
from app.settings import Settings
from tests.engines.publisher import publishing
from tests.engines.rig import BLOCK, SECRET, prompt, told
from tests.engines.test_live import Followed
from tests.engines.wires import CLEARED, packed, removed, stored
from tests.fixtures.service import ServiceProcess
from tests.process.waiting import until

KEY = EngineKey("a")
LONG = prompt(12)
OTHER = prompt(4, seed=9)


def spec(**fields: Any) -> EngineSpec:
    given = {"instance_id": "a", "model": "m", "block_tokens": BLOCK, "tenants": ("t", "u")}
    given["salts"] = {"s-t": "t", "s-u": "u"}
    return EngineSpec(**(given | fields))


def frame(number: int, *events: Any) -> bytes:
    return packed(*events, at_s=number + 0.5)


# What the engine told before its first copy: frames 0 to 3.
FRAMES = (
    (told(LONG[: 8 * BLOCK], cache_salt="s-t"),),
    (told(OTHER, 50, cache_salt="s-u", kv_cache_spec_kind="full_attention"),),
    (stored([1, 2, 3], token_ids=[], block_size=0, medium="CPU"),),
    (removed([8]),),
)
NEXT = told(LONG[7 * BLOCK :], 20, parent_block_hash=7)


class Process:
    """One life of what writes the index."""

    def __init__(self, database: Database, path: Path | None, **options: Any) -> None:
        secret = options.pop("secret", SECRET)
        shared = options.pop("shared", False)
        settings = Settings(
            database_url="-",
            handle_secret="-",
            block_index_file=path,
            **({"block_index_blocks": 100_000} | options),
        )
        self.clock = SystemClock()
        self.own = own_index(
            settings, database, self.clock, SystemIds(), TenantHashing(secret), shared=shared
        )
        self.directory = self.own.directory
        self.matcher = EngineMatcher(self.own.core, self.directory, self.own.spaces)

    async def push(self, number: int, *events: Any, lost: bool = False) -> ViewState:
        found = await self.own.intake.take(KEY, number, frame(number, *events), lost=lost)
        return found.state

    async def told_all(self) -> "Process":
        """It has registered the engine, and taken its first frames."""
        await self.directory.poll()
        await self.own.intake.register(spec())
        for number, events in enumerate(FRAMES):
            assert await self.push(number, *events) is ViewState.LIVE
        return self

    async def saved(self) -> None:
        await self.directory._save()

    def ask(self, tokens: list[int], tenant: str = "t") -> Match:
        wanted = Filter(tenant, "m", salt=f"s-{tenant}")
        return self.matcher.match(wanted, array("I", tokens).tobytes(), now_us=self.clock.now_us())

    def reach(self, tokens: list[int], tenant: str = "t") -> tuple[str, int]:
        found = self.ask(tokens, tenant)
        best = max((each.matched_tokens for each in found.candidates), default=0)
        return found.result, best // BLOCK

    def status(self):
        engine = self.directory.get(KEY)
        assert engine is not None
        return self.directory.status(engine)

    def blocks(self) -> int:
        self.own.core.sweep()
        self.own.core.check_invariants()
        return self.own.core.stats()["blocks"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.copy"


@pytest.fixture
def life(database: Database, path: Path):
    """Begins a process behind the one before it, which is dead then."""
    made: list[Process] = []

    def begin(**options: Any) -> Process:
        made.append(Process(database, path, **options))
        return made[-1]

    yield begin
    for one in made:
        one.directory.transport.close()


Life = Callable[..., Process]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("again", [False, True])
async def test_what_an_engine_has_is_known_once_its_sequence_goes_on(life: Life, shared, again):
    first = await life(shared=shared).told_all()
    before = first.status().view
    assert first.reach(LONG) == ("hit", 7)
    await first.saved()
    then = life(shared=shared)
    await then.directory.poll()
    view = then.status().view
    assert (view.state, view.last_sequence, view.epoch, view.blocks) == (
        ViewState.UNKNOWN, 3, 1, {},
    )  # fmt: skip
    assert then.reach(LONG) == ("unknown", 0)
    assert then.blocks() == 11
    if again:
        assert await then.push(3, *FRAMES[3]) is ViewState.LIVE
        after = then.status().view
        assert (after.blocks, after.groups) == (before.blocks, before.groups)
        assert (after.lag_us, after.last_sequence) == (before.lag_us, 3)
        assert then.reach(LONG) == ("hit", 7)
    assert await then.push(4, NEXT) is ViewState.LIVE
    assert then.reach(LONG) == ("hit", 12)
    assert then.reach(OTHER, "u") == ("hit", 4)
    assert then.reach(OTHER) == ("miss", 0)
    # What it had can be removed, and what it has is saved again.
    await then.push(5, removed([3, 4]), removed([1], medium="CPU"))
    assert then.reach(LONG)[1] == 3
    await then.directory.stop()
    last = life(shared=shared)
    await last.directory.poll()
    await last.push(6, CLEARED)
    assert (last.reach(LONG), last.blocks()) == (("miss", 0), 0)


async def test_a_copy_of_what_was_not_proven_yet_is_as_good(life: Life):
    first = await life().told_all()
    await first.directory.stop()
    for _ in range(2):
        idle = life()
        await idle.directory.poll()
        # Somebody else is new: there is something to save.
        await idle.own.intake.register(spec(instance_id="b"))
        await idle.own.intake.take(EngineKey("b"), 0, frame(0), lost=False)
        await idle.directory.stop()
    then = life()
    await then.directory.poll()
    await then.push(4, NEXT)
    assert then.reach(LONG) == ("hit", 12)


async def test_after_a_gap_nothing_of_the_copy_is_left(life: Life):
    await (await life().told_all()).directory.stop()
    then = life()
    await then.directory.poll()
    assert await then.push(6, told(LONG[:BLOCK], cache_salt="s-t"), lost=True) is ViewState.UNKNOWN
    # The first block is there because it was stored since.
    assert then.reach(LONG) == ("hit", 1)
    assert then.blocks() == 1


@pytest.mark.parametrize("number", [0, 2, 3])
async def test_another_process_of_the_engine_begins_with_nothing(life: Life, number):
    await (await life().told_all()).directory.stop()
    then = life()
    await then.directory.poll()
    await then.push(number, told(OTHER, cache_salt="s-u"), lost=True)
    assert then.status().view.epoch == 2
    assert then.reach(LONG)[1] == 0
    assert then.reach(OTHER, "u") == ("hit", 4)
    assert then.blocks() == 4


@pytest.mark.parametrize("forgotten", [False, True])
async def test_of_an_engine_that_is_registered_otherwise_nothing_is_left(life: Life, forgotten):
    first = await life().told_all()
    await first.saved()
    if forgotten:
        await first.own.intake.forget(KEY)
    else:
        await first.own.intake.register(spec(salts={"s-t": "u", "s-u": "t"}), replace=True)
    then = life()
    await then.directory.poll()
    assert then.blocks() == 0
    if not forgotten:
        assert then.status().state is ViewState.PENDING
        await then.push(4, NEXT, lost=True)
        assert then.reach(LONG) == ("unknown", 0)


async def test_what_was_unknown_is_unknown_still(life: Life):
    first = await life().told_all()
    assert await first.push(9, told(OTHER, cache_salt="s-u"), lost=True) is ViewState.UNKNOWN
    await first.directory.stop()
    then = life()
    await then.directory.poll()
    assert await then.push(10) is ViewState.UNKNOWN
    assert then.reach(OTHER, "u") == ("hit", 4)
    assert then.reach(LONG) == ("unknown", 0)
    assert await then.push(11, CLEARED) is ViewState.LIVE


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b"something else\n" * 1000),
    "head": lambda path: _flip(path, 200),
    "memory": lambda path: _flip(path, path.stat().st_size - 100),
    "short": lambda path: path.write_bytes(path.read_bytes()[:-4096]),
    "directory": lambda path: (path.unlink(), path.mkdir()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("fault", [*BROKEN, "secret", "blocks", "bytes"])
async def test_a_copy_that_cannot_be_used_is_refused_and_replaced(life: Life, path, fault, capfd):
    await (await life().told_all()).directory.stop()
    assert path.stat().st_mode & 0o777 == 0o600
    if fault in BROKEN:
        BROKEN[fault](path)
    options = {
        "secret": {"secret": bytes(32)},
        "blocks": {"block_index_blocks": 50_000},
        "bytes": {"block_index_bytes": 1 << 25},
    }.get(fault, {})
    then = life(**options)
    await then.directory.poll()
    assert "block_index_copy_refused" in "".join(capfd.readouterr())
    assert (then.blocks(), then.status().state) == (0, ViewState.PENDING)
    await then.push(4, NEXT, lost=True)
    assert then.reach(LONG) == ("unknown", 0)
    await then.push(5, CLEARED, told(OTHER, cache_salt="s-u"))
    if fault == "directory":
        path.rmdir()
    await then.directory.stop()
    last = life(**options)
    await last.directory.poll()
    await last.push(6)
    assert last.reach(OTHER, "u") == ("hit", 4)


async def test_a_copy_of_another_deployment_is_refused_though_nobody_claims_it(
    life: Life, database: Database, capfd
):
    await (await life().told_all()).directory.stop()
    without = Process(database, None)
    await without.directory.poll()
    assert await without.own.intake.forget(KEY)
    await without.directory.stop()
    then = life(secret=bytes(32))
    for _ in range(2):
        await then.directory.poll()
    assert "".join(capfd.readouterr()).count("it is of another deployment") == 1


async def test_frames_wait_for_a_copy_and_keep_their_order(life: Life, path):
    one = await life().told_all()
    await one.push(4, NEXT)
    for turn in range(5):
        first = 5 + 40 * turn
        pushes = [one.push(n, told(prompt(64, n), 64 * n)) for n in range(first, first + 40)]
        states = await asyncio.gather(
            *pushes[:10], one.saved(), *pushes[10:30], one.saved(), *pushes[30:]
        )
        assert set(states) == {None, ViewState.LIVE}
    assert one.status().view.last_sequence == 204
    await one.directory.stop()
    written = path.stat().st_mtime_ns
    # Nothing changed since.
    await one.saved()
    assert path.stat().st_mtime_ns == written


async def test_a_copy_that_cannot_be_written_leaves_the_one_before(life: Life, path, tmp_path):
    one = await life().told_all()
    await one.saved()
    before = path.read_bytes()
    in_the_way = tmp_path / "index.copy.new"
    in_the_way.mkdir()
    await one.push(4, NEXT)
    await one.saved()
    assert path.read_bytes() == before
    assert await one.push(5) is ViewState.LIVE
    in_the_way.rmdir()
    await one.saved()
    assert path.read_bytes() != before


def _saved_blocks(service: ServiceProcess) -> int | None:
    """Blocks of the copy that was written last, as the service says."""
    lines = [json.loads(line) for line in service.log().splitlines() if "block_index_saved" in line]
    return lines[-1]["blocks"] if lines else None


@pytest.mark.parametrize("restarted", [False, True])
def test_a_service_that_is_killed_goes_on_with_its_copy(database_url, tmp_path, restarted):
    """The engine's replays reach back three frames: all else is from the copy."""
    path = tmp_path / "index.copy"
    env = {"NEXUSKV_BLOCK_INDEX_FILE": str(path), "NEXUSKV_BLOCK_INDEX_SAVE_S": "5"}
    service = ServiceProcess(database_url, tmp_path, **env).start()
    try:
        with publishing(replay_parts=4, keep=3) as engine:
            endpoint, replay = engine.endpoint, engine.replay_endpoint
            with service.client() as client:
                followed = Followed(client, endpoint=endpoint, replay_endpoint=replay)
                engine.subscribed().send(30)
                followed.until(state="live", blocks={"gpu": {"0": 30}})
                until(lambda: _saved_blocks(service) == 30, "a copy")
            service.kill()
            if not restarted:
                engine.send()
                service.start()
                with service.client() as followed.client:
                    followed.until(state="live", last_sequence=30, blocks={"gpu": {"0": 31}})
                    assert followed.match(31) == ("hit", 31 * BLOCK)
                return
        options = {"bind": endpoint, "replay_parts": 4, "replay_bind": replay, "keep": 3}
        with publishing(seed=7, **options) as engine:
            # Its next number is the one behind the copy's last frame.
            engine.drop(30)
            service.start()
            engine.subscribed().send()
            with service.client() as followed.client:
                followed.until(last_sequence=30)
                assert followed.match(30) == ("unknown", 0)
    finally:
        service.kill()
