"""What the history's tests share: spools that end with their test, and a cutting proxy."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from app.db.connect import normalise_url
from app.db.session import Database
from tests.decisions.cutting_proxy import CuttingProxy
from tests.decisions.spooled import Spooled

MakeSpooled = Callable[..., Spooled]


@pytest.fixture
async def make_spooled(tmp_path: Path) -> AsyncIterator[MakeSpooled]:
    """Make spools with copiers that retry fast and store only when asked."""
    made: list[Spooled] = []

    def make(database: Database, **limits: Any) -> Spooled:
        spooled = Spooled(database, tmp_path / f"spool-{len(made)}", **limits)
        made.append(spooled)
        return spooled

    yield make
    for spooled in made:
        spooled.spool.close()
        await spooled.kill()


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
def proxied_url(database_url: str, proxy: CuttingProxy) -> str:
    """The test's database, reached through the proxy."""
    url = make_url(normalise_url(database_url))
    query = {name: value for name, value in url.query.items() if name not in ("host", "port")}
    through = url.set(host="127.0.0.1", port=proxy.port, query=query | {"ssl": "disable"})
    return through.render_as_string(hide_password=False)


@pytest.fixture
async def proxied(proxied_url: str) -> AsyncIterator[Database]:
    """Likewise."""
    opened = Database(proxied_url, application_name="behind-proxy")
    yield opened
    await opened.close()
