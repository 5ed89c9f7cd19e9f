"""A walk over the pages is of one moment, whatever commits while it goes on."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.db.session import Database, WriteSession
from app.decisions.cursor import Moment
from tests.decisions.answering import FixedAccess, application, client_of
from tests.decisions.rows import a_decision, id_at, store, store_in

NOW = datetime.now(UTC).replace(microsecond=0)
LIST = "/v1/decisions"
MAX_OPEN = 5
_tenants, _numbers = count(), count(1)


@pytest.fixture
async def client(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(database, FixedAccess())) as client:
        yield client


class Walk:
    """One reader, page by page."""

    def __init__(self, client: httpx.AsyncClient, tenant: str, page_size: int = 2) -> None:
        self._client = client
        self._params = {"tenant": tenant, "page_size": str(page_size)}
        self.seen: list[str] = []
        self.done = False

    async def page(self) -> None:
        answer = await self._client.get(LIST, params=self._params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        self.seen += [item["decision_id"] for item in page["items"]]
        self.done = page["next_cursor"] is None
        self._params["cursor"] = page["next_cursor"]

    async def rest(self) -> list[str]:
        while not self.done:
            await self.page()
        return self.seen


async def test_what_commits_late_is_in_no_page_of_a_walk_that_has_begun(
    client: httpx.AsyncClient, database: Database
) -> None:
    early = [a_decision(decision_id=id_at(NOW - timedelta(seconds=s), 1)) for s in (10, 20, 30, 40)]
    await store(database, early)
    # Of the middle of the list, begun before the walk and committed during it.
    late = [a_decision(decision_id=id_at(NOW - timedelta(seconds=s), 2)) for s in (15, 35)]
    walk = Walk(client, "acme", page_size=1)
    async with database.write() as session:
        await store_in(session, late, sums=False)
        await walk.page()
    await walk.page()
    # Begun and committed during the walk, ahead of where it stands.
    await store(database, [a_decision(decision_id=id_at(NOW - timedelta(seconds=38), 3))])
    assert await walk.rest() == [str(row.decision_id) for row in early]
    assert len(await Walk(client, "acme").rest()) == 7


async def test_rows_of_another_cluster_are_shown(
    client: httpx.AsyncClient, database: Database
) -> None:
    """A restored dump brings numbers of transactions that this cluster has yet to begin."""
    rows = [a_decision() for _ in range(5)]
    await store(database, rows)
    async with database.write() as session:
        await session.execute(text("ALTER TABLE decision DISABLE TRIGGER USER"))
        await session.execute(text("UPDATE decision SET xid = '4611686018427387904'"))
    assert sorted(await Walk(client, "acme").rest()) == sorted(str(row.decision_id) for row in rows)


class Commits:
    """Transactions that are open for as long as a test wants."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: list[tuple[AsyncExitStack, WriteSession]] = []

    def __len__(self) -> int:
        return len(self._open)

    async def begin(self) -> WriteSession:
        stack = AsyncExitStack()
        session = await stack.enter_async_context(self._database.write())
        self._open.append((stack, session))
        return session

    async def commit(self, number: int) -> None:
        stack, _ = self._open.pop(number)
        await stack.aclose()

    async def close(self) -> None:
        while self._open:
            await self.commit(0)


@asynccontextmanager
async def open_commits(database: Database) -> AsyncIterator[Commits]:
    commits = Commits(database)
    try:
        yield commits
    finally:
        await commits.close()


# Of each step: a row at some time in a transaction of its own, left open; the end of one of the
# open ones; or the next page.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 30)),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("page"), st.just(0)),
    ),
    min_size=4,
    max_size=24,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, page_size=st.integers(1, 3))
async def test_a_walk_is_what_had_committed_when_it_began(
    client: httpx.AsyncClient,
    database: Database,
    steps: list[tuple[str, int]],
    page_size: int,
) -> None:
    tenant = f"t-{next(_tenants)}"
    walk: Walk | None = None
    uncommitted: list[str] = []
    committed: set[str] = set()
    expected: list[str] = []
    async with open_commits(database) as commits:
        for step, value in steps:
            if step == "begin" and len(commits) < MAX_OPEN:
                moment = NOW - timedelta(seconds=value)
                row = a_decision(decision_id=id_at(moment, next(_numbers)), tenant=tenant)
                await store_in(await commits.begin(), [row], sums=False)
                uncommitted.append(str(row.decision_id))
            elif step == "commit" and value < len(commits):
                await commits.commit(value)
                committed.add(uncommitted.pop(value))
            elif step == "page":
                if walk is None:
                    walk = Walk(client, tenant, page_size)
                    expected = sorted(committed, reverse=True)
                if not walk.done:
                    await walk.page()
    if walk is not None:
        assert await walk.rest() == expected


@given(
    oldest=st.integers(1, 2**62),
    gaps=st.lists(st.integers(1, 2**20), max_size=200),
    above=st.integers(1, 2**20),
)
def test_a_moment_is_read_and_written_as_postgres_does(
    oldest: int, gaps: list[int], above: int
) -> None:
    running = [oldest]
    for gap in gaps:
        running.append(running[-1] + gap)
    written = f"{oldest}:{running[-1] + above}:{','.join(map(str, running))}"
    moment = Moment.read(written)
    assert str(moment) == written
    assert moment.sound
    assert not moment._replace(next_one=running[-1]).sound
    assert str(Moment.read("7:7:")) == "7:7:"
