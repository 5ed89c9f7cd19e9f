"""A proxy in front of Postgres that breaks connections at chosen points of a COPY or its COMMIT.

It follows the protocol just far enough to know where a COPY stands, and which COMMIT follows it, so
that every fault happens at a defined point and no test depends on time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Self

_CHUNK_BYTES = 65_536
_QUERY = b"Q"
_COPY = b"COPY "  # begins the statement, and the tag of the server's CommandComplete
_COPY_DONE = b"c\x00\x00\x00\x04"
_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
_COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
_READY = b"Z\x00\x00\x00\x05I"

Opener = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
Hook = Callable[[], Awaitable[None]]


class Fault(Enum):
    """What happens to the next COPY, or to the COMMIT of a transaction with one."""

    CUT_BEFORE_DATA = auto()  # the server has the statement and never gets a row
    CUT_BEFORE_ANSWER = auto()  # committed, and the client never learns
    HOLD = auto()  # the client is cut; the server gets the COPY when `release` is called
    CUT_BEFORE_COMMIT = auto()  # the server never gets it
    CUT_AFTER_COMMIT = auto()  # committed, and the client never learns
    HOLD_COMMIT = auto()  # the client is cut; the server gets it when `release` is called


class CuttingProxy:
    """Use as an async context manager; `port` is where it listens on 127.0.0.1."""

    def __init__(self, open_upstream: Opener) -> None:
        self._open_upstream = open_upstream
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._held: list[tuple[bytes, asyncio.StreamWriter, asyncio.StreamReader]] = []
        self._away = False
        self.port = 0
        self.refused = 0
        self.refusal = asyncio.Event()
        self.faults: list[Fault] = []
        self.faults_done = 0
        # Runs once, when the server has the statement of a COPY and none of its rows.
        self.on_copy: Hook | None = None
        # Likewise when the server has committed one, and the client does not know it yet.
        self.on_committed: Hook | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.go_away()
        for _, upstream, _ in self._held:
            upstream.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        await self._server.wait_closed()

    def go_away(self) -> None:
        """Cut every connection and accept no new one."""
        self._away = True
        for client in self._clients:
            client.transport.abort()

    def come_back(self) -> None:
        self._away = False

    async def release(self) -> bytes:
        """Give the server the COPY or COMMIT that was held, and return all it answers."""
        data, upstream, answers = self._held.pop()
        upstream.write(data)
        await upstream.drain()
        answer = b""
        while not answer.endswith(_READY):
            chunk = await answers.read(_CHUNK_BYTES)
            if not chunk:
                break
            answer += chunk
        upstream.close()
        return answer

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        if self._away:
            self.refused += 1
            self.refusal.set()
            writer.transport.abort()
            return
        self._clients.add(writer)
        upstream_reader, upstream_writer = await self._open_upstream()
        link = _Link(self, reader, writer, upstream_reader, upstream_writer)
        try:
            await link.run()
        finally:
            self._clients.discard(writer)
            writer.transport.abort()
            if not link.held:
                upstream_writer.close()


class _Link:
    """One client's connection and its twin to the server."""

    def __init__(
        self,
        proxy: CuttingProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._upstream_reader = upstream_reader
        self._upstream_writer = upstream_writer
        self._in_copy = False
        # Whether the transaction has a COPY, and whether the server has its COMMIT.
        self._copied = False
        self._committing = False
        # What the server is to get later.
        self._kept = b""

    async def run(self) -> None:
        with suppress(ConnectionError):
            ways = [asyncio.create_task(self._up()), asyncio.create_task(self._down())]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                if self._kept:
                    # Nobody reads the server's answers any more.
                    self._proxy._held.append(
                        (self._kept, self._upstream_writer, self._upstream_reader)
                    )

    @property
    def held(self) -> bool:
        return bool(self._kept)

    def _fault_is(self, fault: Fault) -> bool:
        faults = self._proxy.faults
        return bool(faults) and faults[0] is fault

    def _done(self) -> None:
        self._proxy.faults.pop(0)
        self._proxy.faults_done += 1

    async def _up(self) -> None:
        while chunk := await self._reader.read(_CHUNK_BYTES):
            if chunk.startswith(_QUERY) and _COPY in chunk:
                self._in_copy = self._copied = True
                chunk = await self._begin_copy(chunk)
                if not chunk:
                    return
            elif self._copied and chunk == _COMMIT:
                self._copied = False
                if self._commit_is_kept():
                    return
            self._upstream_writer.write(chunk)
            await self._upstream_writer.drain()

    def _commit_is_kept(self) -> bool:
        """Whether the server does not get the COMMIT, for now or ever, and the client is cut."""
        if self._fault_is(Fault.HOLD_COMMIT):
            self._done()
            self._kept = _COMMIT
            return True
        if self._fault_is(Fault.CUT_BEFORE_COMMIT):
            self._done()
            return True
        self._committing = True
        return False

    async def _begin_copy(self, chunk: bytes) -> bytes:
        """Deal with the statement, and return what is left to forward; b"" cuts the client."""
        if self._fault_is(Fault.HOLD):
            # asyncpg sends statement and rows without waiting for the server.
            while not chunk.endswith(_COPY_DONE):
                chunk += await self._reader.read(_CHUNK_BYTES)
            self._done()
            self._kept = chunk
            return b""
        hook, self._proxy.on_copy = self._proxy.on_copy, None
        cut = self._fault_is(Fault.CUT_BEFORE_DATA)
        if hook is None and not cut:
            return chunk
        statement_bytes = 1 + int.from_bytes(chunk[1:5], "big")
        self._upstream_writer.write(chunk[:statement_bytes])
        await self._upstream_writer.drain()
        if hook is not None:
            await hook()
        if cut:
            self._done()
            return b""
        return chunk[statement_bytes:] or await self._reader.read(_CHUNK_BYTES)

    async def _down(self) -> None:
        while chunk := await self._upstream_reader.read(_CHUNK_BYTES):
            if self._in_copy and _COPY in chunk:
                if self._fault_is(Fault.CUT_BEFORE_ANSWER):
                    self._done()
                    return
                self._in_copy = False
            if self._committing and _COMMITTED in chunk:
                self._committing = False
                hook, self._proxy.on_committed = self._proxy.on_committed, None
                if hook is not None:
                    await hook()
                if self._fault_is(Fault.CUT_AFTER_COMMIT):
                    self._done()
                    return
            self._writer.write(chunk)
            await self._writer.drain()
