"""What the history's tests share: rows, writers that end with their test, and a cutting proxy."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from app.clock import SystemClock, SystemIds
from app.db.connect import normalise_url
from app.db.session import Database
from app.decisions.writer import DecisionWriter, WriterLimits
from tests.decisions.cutting_proxy import CuttingProxy

WriterFactory = Callable[..., DecisionWriter]


@pytest.fixture
async def make_writer() -> AsyncIterator[WriterFactory]:
    """Make writers that retry fast and flush only when asked; they are ended after the test."""
    made: list[DecisionWriter] = []

    def make(database: Database, **limits: Any) -> DecisionWriter:
        quick = {"flush_interval_s": 30.0, "retry_first_s": 0.001, "retry_max_s": 0.005}
        writer = DecisionWriter(
            database, SystemIds(), SystemClock(), limits=WriterLimits(**(quick | limits))
        )
        made.append(writer)
        return writer

    yield make
    for writer in made:
        await writer.drain(0.01)


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[CuttingProxy]:
    url = make_url(normalise_url(database_url))
    port = int(url.query.get("port") or url.port or 5432)  # type: ignore[arg-type]
    socket_dir = url.query.get("host")

    async def open_upstream() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if socket_dir:
            return await asyncio.open_unix_connection(f"{socket_dir}/.s.PGSQL.{port}")
        return await asyncio.open_connection(url.host, port)

    async with CuttingProxy(open_upstream) as proxy:
        yield proxy


@pytest.fixture
async def proxied(database_url: str, proxy: CuttingProxy) -> AsyncIterator[Database]:
    """The test's database, reached through the proxy."""
    url = make_url(normalise_url(database_url))
    query = {name: value for name, value in url.query.items() if name not in ("host", "port")}
    through = url.set(host="127.0.0.1", port=proxy.port, query=query | {"ssl": "disable"})
    opened = Database(
        through.render_as_string(hide_password=False), application_name="behind-proxy"
    )
    yield opened
    await opened.close()
