"""A reader's side of the socket: the connection to the index's writer, and what it is handed.

It connects again and again, and takes the memory of whichever writer is there then.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog

from app.engines.directory import EngineStatus
from app.engines.intake import Pushed, Registered
from app.engines.mirror import EngineMirror, index_away
from app.engines.port_wire import (
    HELLO,
    MAX_MESSAGE_BYTES,
    MAX_OUTSTANDING,
    Answer,
    Catalogue,
    Forget,
    Look,
    Push,
    Register,
    Request,
    Seen,
    WireFaultError,
    framed,
    next_frame,
    read_of_writer,
)
from app.engines.registration import EngineKey, EngineSpec
from app.errors import ErrorCode, NexusError
from nexuskv_core import BlockIndex

_RETRY_LEAST_S: Final = 0.05
_RETRY_MOST_S: Final = 1.0
_HELLO_S: Final = 2.0
# A writer that is silent for so long hangs: its beats come far more often.
_SILENCE_S: Final = 5.0
# Longer than the writer waits for readers that hang; the database has its own time-outs.
_ANSWER_S: Final = 15.0
# A reader that starts while the writer is away goes on without it after so long.
_FIRST_S: Final = 10.0
_LOOK_KEYS: Final = 64
OPERATIONS: Final = ("register", "forget", "push", "look")
RESULTS: Final = ("ok", "refused", "away")
T = TypeVar("T")
log = structlog.get_logger("nexuskv.index")


class IndexPortClient:
    """Keeps a mirror up to date, and takes requests. On the event loop's thread."""

    def __init__(self, path: Path, mirror: EngineMirror) -> None:
        self._path = path
        self._mirror = mirror
        self._stream: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._next = 0
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        # What was handed over, by what became of it; connections to a writer after the first one.
        self.forwarded: dict[tuple[str, ...], int] = dict.fromkeys(product(OPERATIONS, RESULTS), 0)
        self.reconnects = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="index port")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def wait_loaded(self) -> None:
        """Returns with the first catalogue, or when it has not come for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                await self._first.wait()

    # ---- for metrics

    @property
    def away(self) -> bool:
        return self._mirror.away()

    @property
    def readers_cut(self) -> int:
        return self._mirror.readers_cut

    # ---- the connection

    async def _run(self) -> None:
        pause_s, connections, said = _RETRY_LEAST_S, 0, False
        while True:
            try:
                reader, self._stream = await self._connected()
                self.reconnects += connections > 0
                connections, said, pause_s = connections + 1, False, _RETRY_LEAST_S
                log.info("index_attached")
                await self._follow(reader)
            except (
                OSError,
                WireFaultError,
                msgspec.DecodeError,
                TimeoutError,
                ValueError,
            ) as error:
                if not said:
                    log.warning("index_away", cause=str(error) or type(error).__name__)
                said = True
            except Exception:
                # A reader that gave up would know nothing for ever.
                log.exception("index_port_failed")
            finally:
                self._lose()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MOST_S)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        taken, descriptor = await asyncio.to_thread(_greeted, self._path)
        try:
            self._mirror.attach(BlockIndex.attach(descriptor))
            return await asyncio.open_unix_connection(sock=taken)
        except BaseException:
            taken.close()
            raise
        finally:
            os.close(descriptor)

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        while True:
            async with asyncio.timeout(_SILENCE_S):
                frame = await next_frame(reader)
            if frame is None:
                raise WireFaultError("the writer closed the connection")
            message = read_of_writer(frame)
            if isinstance(message, Answer):
                self._answered(message)
                continue
            self._mirror.take(message)
            if isinstance(message, Catalogue):
                try:
                    self._write(framed(Seen(message.number)))
                except NexusError:
                    raise WireFaultError("the connection was closed") from None
                if message.complete:
                    self._first.set()

    def _lose(self) -> None:
        self._mirror.lose()
        if self._stream is not None:
            self._stream.transport.abort()
            self._stream = None
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(index_away())
        self._asked.clear()

    def _write(self, frame: bytes) -> None:
        """Raises INDEX_AWAY, also where the connection has ended and `_follow` is yet to see it."""
        if self._stream is None or self._stream.transport.is_closing():
            raise index_away()
        try:
            self._stream.write(frame)
        except RuntimeError:
            # Closed, by the event loop's own words.
            raise index_away() from None

    # ---- requests

    def _answered(self, answer: Answer) -> None:
        asked = self._asked.pop(answer.request, None)
        if asked is None or asked.done():
            return
        if answer.refused is None:
            asked.set_result(answer.done)
        else:
            asked.set_exception(answer.refused.error())

    def number(self) -> int:
        """Of the next request."""
        self._next += 1
        return self._next

    async def ask(self, request: Request, kind: type[T] | Any) -> T:
        """What the writer answers. Raises what it refuses with; INDEX_AWAY, and then it may have
        been done or not; OVERLOADED when too many requests wait."""
        operation = type(request).__name__.lower()
        try:
            found = await self._ask(request)
        except NexusError as error:
            away = error.code is ErrorCode.INDEX_AWAY
            self.forwarded[operation, "away" if away else "refused"] += 1
            raise
        self.forwarded[operation, "ok"] += 1
        done: T = msgspec.msgpack.decode(found, type=kind)
        return done

    async def _ask(self, request: Request) -> msgspec.Raw:
        if self._stream is None:
            raise index_away()
        unsent = self._stream.transport.get_write_buffer_size()
        if len(self._asked) >= MAX_OUTSTANDING or unsent > MAX_MESSAGE_BYTES:
            raise NexusError(ErrorCode.OVERLOADED, "Too many writes are under way; try again")
        self._write(framed(request))
        asked: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._asked[request.request] = asked
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await asked
        except TimeoutError:
            raise index_away() from None
        finally:
            self._asked.pop(request.request, None)


class ForwardedIntake:
    """What is done to engines, done by the writer; with this, `EngineIntake` is of the same use."""

    def __init__(self, client: IndexPortClient) -> None:
        self._client = client

    async def register(
        self, spec: EngineSpec, *, replace: bool = False, tenants: frozenset[str] | None = None
    ) -> Registered:
        """As EngineIntake; every reader knows of it then. INDEX_AWAY, OVERLOADED besides."""
        request = Register(self._client.number(), spec, replace, tenants)
        return await self._client.ask(request, Registered)

    async def forget(self, key: EngineKey, *, tenants: frozenset[str] | None = None) -> bool:
        """Likewise."""
        return await self._client.ask(Forget(self._client.number(), key, tenants), bool)

    async def take(
        self,
        key: EngineKey,
        number: int,
        payload: bytes,
        *,
        lost: bool,
        tenants: frozenset[str] | None = None,
    ) -> Pushed:
        """Likewise."""
        request = Push(self._client.number(), key, number, payload, lost, tenants)
        return await self._client.ask(request, Pushed)

    async def statuses(self, keys: Sequence[EngineKey]) -> list[EngineStatus]:
        """Likewise, and INDEX_AWAY also where nothing is asked for."""
        found: list[EngineStatus] = []
        for at in range(0, max(1, len(keys)), _LOOK_KEYS):
            request = Look(self._client.number(), list(keys[at : at + _LOOK_KEYS]))
            found += await self._client.ask(request, list[EngineStatus])
        return found


def _greeted(path: Path) -> tuple[socket.socket, int]:
    """A connection, and the descriptor of the index's memory. Blocks; raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptors: list[int] = []
    try:
        made.settimeout(_HELLO_S)
        made.connect(str(path))
        said, descriptors, _, _ = socket.recv_fds(made, len(HELLO), 1)
        _check(said, descriptors)
        made.setblocking(False)
    except (OSError, WireFaultError):
        made.close()
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return made, descriptors[0]


def _check(said: bytes, descriptors: list[int]) -> None:
    if said != HELLO or len(descriptors) != 1:
        raise WireFaultError("it is no index of this version that answers")
