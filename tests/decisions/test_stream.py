"""`/v1/decisions/stream` over a real connection: in order of storing, none twice, none left out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
import uvicorn
from fastapi import FastAPI

from app.api.decisions_stream import MAX_STREAMS
from app.db.session import Database
from app.decisions.stream import BATCH_ROWS
from tests.decisions.answering import FixedAccess, application, refusal
from tests.decisions.rows import a_decision, store, store_in

PATH = "/v1/decisions/stream"
WAIT_S = 20.0


@pytest.fixture
def access() -> FixedAccess:
    return FixedAccess()


@pytest.fixture
def app(database: Database, access: FixedAccess) -> FastAPI:
    return application(database, access)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server in this loop: only over a connection does a stream come piece by piece."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
        yield client
    server.should_exit = True
    await serving


class Events:
    """A stream's events, as a browser reads them."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.last_id = ""
        self._lines = answer.aiter_lines()

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event and its data; `last_id` is then its id. Raises StopAsyncIteration."""
        event, data = "", ""
        async with asyncio.timeout(WAIT_S):
            while True:
                name, _, value = (await anext(self._lines)).partition(":")
                value = value.removeprefix(" ")
                if name == "id":
                    self.last_id = value
                elif name == "event":
                    event = value
                elif name == "data":
                    data += value
                elif not name and not value and data:
                    return event, orjson.loads(data)

    async def begun(self) -> None:
        """Until it is said where it begins."""
        async with asyncio.timeout(WAIT_S):
            while not (await anext(self._lines)).startswith("id:"):
                pass

    async def ids(self, count: int) -> list[str]:
        found = [await self.next() for _ in range(count)]
        assert {event for event, _ in found} == {"decision"}
        return [data["decision_id"] for _, data in found]


@asynccontextmanager
async def streamed(
    client: httpx.AsyncClient, last_id: str | None = None, **params: str
) -> AsyncIterator[Events]:
    headers = {} if last_id is None else {"last-event-id": last_id}
    async with client.stream("GET", PATH, params=params, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


async def test_decisions_come_as_the_list_has_them(
    client: httpx.AsyncClient, database: Database
) -> None:
    await store(database, [a_decision()])
    async with streamed(client, tenant="acme") as events:
        await events.begun()
        decision = a_decision()
        await store(database, [a_decision(tenant="globex")])
        await store(database, [decision])
        event, data = await events.next()
    assert (event, data["decision_id"]) == ("decision", str(decision.decision_id))
    items = (await client.get("/v1/decisions", params={"tenant": "acme"})).json()["items"]
    assert data in items


async def test_it_goes_on_after_the_last_event_seen(
    client: httpx.AsyncClient, database: Database
) -> None:
    batches = [sorted(str(uuid) for uuid in ids) for ids in await stored(database, (3, 4, 2))]
    everything = [one for batch in batches for one in batch]
    beginning = "0-00000000-0000-0000-0000-000000000000"
    async with streamed(client, beginning) as events:
        assert await events.ids(5) == everything[:5]
    async with streamed(client, events.last_id) as again:
        assert await again.ids(4) == everything[5:]
    # A pause in which decisions are stored, of more than one read.
    (more,) = await stored(database, (BATCH_ROWS + 50,))
    async with streamed(client, again.last_id) as after:
        assert await after.ids(BATCH_ROWS + 50) == sorted(str(uuid) for uuid in more)


async def stored(database: Database, counts: tuple[int, ...]) -> list[list[Any]]:
    batches = [[a_decision() for _ in range(count)] for count in counts]
    for batch in batches:
        await store(database, batch)
    return [[row.decision_id for row in batch] for batch in batches]


async def test_a_transaction_that_commits_late_is_neither_lost_nor_repeated(
    client: httpx.AsyncClient, database: Database
) -> None:
    late, early, last = a_decision(), a_decision(), a_decision()
    async with streamed(client) as events:
        await events.begun()
        async with database.write() as session:
            await store_in(session, [late], sums=False)
            async with database.write() as other:
                await store_in(other, [early], sums=False)
            # Stored later and committed earlier: it has to wait for the one before.
        await store(database, [last])
        assert await events.ids(3) == [str(row.decision_id) for row in (late, early, last)]


async def test_a_revoked_key_ends_the_stream(
    client: httpx.AsyncClient, access: FixedAccess
) -> None:
    async with streamed(client) as events:
        await events.begun()
        access.principal = None
        assert await events.next() == ("end", {"reason": "unauthorized"})
        with pytest.raises(StopAsyncIteration):
            await events.next()


async def test_it_ends_when_the_service_stops_and_when_its_time_is_over(
    client: httpx.AsyncClient, app: FastAPI
) -> None:
    async with streamed(client) as events:
        await events.begun()
        app.state.services.draining = True
        assert await events.next() == ("end", {"reason": "service_stops"})
    app.state.services.draining = False
    async with streamed(client, for_s="0") as events:
        assert await events.next() == ("end", {"reason": "time_is_over"})


async def test_streams_have_a_limit_and_give_their_place_back(
    client: httpx.AsyncClient,
) -> None:
    async with AsyncExitStack() as stack:
        # Kept: a reader that is forgotten hangs up.
        readers = [await stack.enter_async_context(streamed(client)) for _ in range(MAX_STREAMS)]
        for events in readers:
            await events.begun()
        full = await client.get(PATH)
        assert refusal(full) == (503, "overloaded")
        assert full.headers["retry-after"] == "1"
    # The server learns that a client has gone when it looks.
    async with asyncio.timeout(WAIT_S):
        while (await client.get(PATH, params={"for_s": "0"})).status_code == 503:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "last_id", ["", "nonsense", "1-2", "9223372036854775807-00000000-0000-0000-0000-000000000000"]
)
async def test_an_id_of_no_event_is_refused(client: httpx.AsyncClient, last_id: str) -> None:
    answer = await client.get(PATH, headers={"last-event-id": last_id})
    assert refusal(answer) == (400, "invalid_field")
    assert answer.json()["errors"][0]["pointer"] == "/header/Last-Event-ID"


async def test_a_key_is_told_of_its_tenants_only(
    client: httpx.AsyncClient, database: Database, access: FixedAccess
) -> None:
    access.of_tenants("acme")
    assert refusal(await client.get(PATH, params={"tenant": "globex"})) == (
        403,
        "tenant_forbidden",
    )
    async with streamed(client) as events:
        await events.begun()
        own = a_decision()
        await store(database, [a_decision(tenant="globex"), own])
        assert await events.ids(1) == [str(own.decision_id)]
