"""A gate in front of Postgres: open, closed (connections are cut), or stalled (nothing answers)."""

import asyncio
from contextlib import suppress
from typing import Self

from sqlalchemy.engine import URL, make_url

from app.db.connect import normalise_url

_CHUNK_BYTES = 65_536


class Gate:
    """Use as an async context manager; `url` is the database as seen through the gate."""

    def __init__(self, database_url: str) -> None:
        self._upstream: URL = make_url(normalise_url(database_url))
        self._server: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._closed = False
        self._held = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        query = {k: v for k, v in self._upstream.query.items() if k not in ("host", "port")}
        through = self._upstream.set(host="127.0.0.1", port=port, query=query | {"ssl": "disable"})
        self.url = through.render_as_string(hide_password=False)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        await self._server.wait_closed()

    def close(self) -> None:
        """Cut every connection, and every new one as soon as it comes."""
        self._closed = True
        for writer in self._links.values():
            writer.transport.abort()

    def stall(self) -> None:
        """Connections stay, and nothing that is sent over them arrives."""
        self._flowing.clear()

    async def reached(self, count: int) -> None:
        """Returns once `count` messages are held back by a stall."""
        async with asyncio.timeout(10):
            while self._held < count:
                await asyncio.sleep(0.005)

    def open(self) -> None:
        self._closed = False
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = writer
        try:
            await self._link(reader, writer)
        finally:
            del self._links[task]
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await self._connect()
        ways = [
            asyncio.create_task(self._forward(reader, upstream_writer)),
            asyncio.create_task(self._forward(upstream_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            upstream_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = self._upstream.query
        port = int(str(query.get("port") or self._upstream.port or 5432))
        if socket_dir := query.get("host"):
            return await asyncio.open_unix_connection(f"{socket_dir}/.s.PGSQL.{port}")
        return await asyncio.open_connection(self._upstream.host, port)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_BYTES):
                self._held += 1
                await self._flowing.wait()
                self._held -= 1
                writer.write(chunk)
                await writer.drain()
