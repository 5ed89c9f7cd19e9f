"""The writer's side of the socket: readers get the index's memory and its catalogue, and hand over
what was sent to them. A write is answered when every reader that still answers queries has seen it.
"""

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from app.clock import Clock
from app.engines.catalogue import Ledger
from app.engines.parts import OwnIndex
from app.engines.port_wire import (
    BEAT_S,
    HELLO,
    LEASE_US,
    MAX_OUTSTANDING,
    SEEN_S,
    Answer,
    Beat,
    Forget,
    Look,
    Push,
    Refusal,
    Register,
    Request,
    Seen,
    SentCatalogue,
    Sums,
    WireFaultError,
    encode_value,
    framed,
    next_frame,
    read_of_reader,
)
from app.engines.totals import EngineTotals
from app.errors import ErrorCode, NexusError

_BACKLOG: Final = 64
_MAX_READERS: Final = 256
_SCAN_S: Final = 0.05
_SCANS_A_BEAT: Final = round(BEAT_S / _SCAN_S)
_SUM_S: Final = 1.0
# Counting one engine walks over its places: so many, then others have a turn.
_SUM_ENGINES: Final = 64
# What a reader has not read yet; one that lets more pile up is cut off.
_MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
_US_PER_S: Final = 1_000_000
log = structlog.get_logger("nexuskv.index")


class _Line:
    """A connected reader."""

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self.seen = -1
        self.outstanding = 0
        self._stream = stream

    def send(self, frame: bytes) -> bool:
        """False where the reader lets too much pile up."""
        if self._stream.transport.is_closing():
            return True
        with suppress(RuntimeError):
            # Closed meanwhile; whoever reads from it will see.
            self._stream.write(frame)
        return self._stream.transport.get_write_buffer_size() <= _MAX_UNREAD_BYTES

    def cut(self) -> None:
        self._stream.transport.abort()


class IndexPort:
    """Serves readers on a Unix socket, on the event loop's thread. The index is a shared one."""

    def __init__(self, path: Path, index: OwnIndex, clock: Clock) -> None:
        self._path = path
        self._core = index.core
        self._directory = index.directory
        self._intake = index.intake
        self._clock = clock
        self._ledger = Ledger(index.directory, index.spaces)
        self._lines: set[_Line] = set()
        self._number = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        # Readers that are not connected may answer by what this or an earlier writer told them.
        self._doubt_until_us = clock.monotonic_us() + LEASE_US
        self._sums = Sums({}, EngineTotals(), {}, 0)
        self.readers_cut = 0

    def start(self) -> None:
        """Begins to listen; the directory is loaded. Raises OSError."""
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(self._path))
        self._path.chmod(0o600)
        self._listener.listen(_BACKLOG)
        self._ledger.changes()
        self._spawn(self._accept(self._listener), "readers")
        self._spawn(self._tell(), "catalogue")
        self._spawn(self._count(), "sums")

    async def stop(self) -> None:
        """Cuts every reader off, and takes no more."""
        for task in list(self._tasks):
            task.cancel()
        for task in list(self._tasks):
            with suppress(asyncio.CancelledError):
                await task
        for line in list(self._lines):
            line.cut()
        if self._listener is not None:
            self._listener.close()
            self._path.unlink(missing_ok=True)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- readers

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("reader_not_accepted", cause=str(error))
                await asyncio.sleep(BEAT_S)
                continue
            if len(self._lines) >= _MAX_READERS:
                taken.close()
            else:
                self._spawn(self._serve(taken), "reader")

    async def _serve(self, taken: socket.socket) -> None:
        try:
            # The first bytes of a connection fit: this cannot wait.
            socket.send_fds(taken, [HELLO], [self._core.fd()])
            reader, writer = await asyncio.open_unix_connection(sock=taken)
        except OSError as error:
            log.warning("reader_not_accepted", cause=str(error))
            taken.close()
            return
        line = _Line(writer)
        self._introduce(line)
        try:
            while (frame := await next_frame(reader)) is not None:
                self._take(line, read_of_reader(frame))
        except (OSError, WireFaultError, msgspec.DecodeError) as error:
            self._cut(line, str(error))
        finally:
            self._lines.discard(line)
            line.cut()
            self._settle()

    def _introduce(self, line: _Line) -> None:
        # Whoever is there already hears of what changed as any other change.
        self._publish()
        batches = self._ledger.whole()
        for at, batch in enumerate(batches):
            self._say(
                line,
                SentCatalogue(
                    number=self._number,
                    sent_us=self._clock.monotonic_us(),
                    begins=at == 0,
                    complete=at == len(batches) - 1,
                    facts=batch.facts,
                    gone=batch.gone,
                ),
            )
        self._say(line, Beat(self._clock.monotonic_us(), self._ledger.known_pulses()))
        self._say(line, self._sums)
        self._lines.add(line)

    def _say(self, line: _Line, message: SentCatalogue | Beat | Sums | Answer) -> None:
        self._write(line, framed(message))

    def _write(self, line: _Line, frame: bytes) -> None:
        if not line.send(frame):
            self._cut(line, "it reads too slowly")

    def _cut(self, line: _Line, cause: str) -> None:
        self.readers_cut += 1
        log.warning("reader_cut_off", cause=cause)
        self._lines.discard(line)
        # It may hang, and then go on by what it was told, until that holds no longer.
        self._doubt_until_us = self._clock.monotonic_us() + LEASE_US
        line.cut()
        self._settle()

    # ---- what is told

    async def _tell(self) -> None:
        scans = 0
        while True:
            await asyncio.sleep(_SCAN_S)
            scans += 1
            try:
                self._publish()
                if scans % _SCANS_A_BEAT == 0:
                    self._broadcast(Beat(self._clock.monotonic_us(), self._ledger.pulses()))
            except Exception:
                # Without it all readers know nothing; each of them would still wait for more.
                log.exception("catalogue_not_told")

    async def _count(self) -> None:
        while True:
            try:
                self._sums = await self._counted()
                self._broadcast(self._sums)
            except Exception:
                log.exception("engines_not_counted")
            await asyncio.sleep(_SUM_S)

    async def _counted(self) -> Sums:
        directory = self._directory
        totals = directory.retired()
        for number, view in enumerate(list(directory.views())):
            totals.add(view.status())
            if number % _SUM_ENGINES == _SUM_ENGINES - 1:
                await asyncio.sleep(0)
        return Sums(directory.counts(), totals, directory.replays(), self.readers_cut)

    def _publish(self) -> None:
        for batch in self._ledger.changes():
            self._number += 1
            self._broadcast(
                SentCatalogue(
                    number=self._number,
                    sent_us=self._clock.monotonic_us(),
                    begins=False,
                    complete=True,
                    facts=batch.facts,
                    gone=batch.gone,
                )
            )

    def _broadcast(self, message: SentCatalogue | Beat | Sums) -> None:
        if self._lines:
            frame = framed(message)
            for line in list(self._lines):
                self._write(line, frame)

    async def _seen_by_all(self) -> None:
        """Returns once no reader answers by an older catalogue than the present one."""
        number = self._number
        if any(line.seen < number for line in self._lines):
            seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((number, seen))
            try:
                async with asyncio.timeout(SEEN_S):
                    await seen
            except TimeoutError:
                for line in [each for each in self._lines if each.seen < number]:
                    self._cut(line, f"it has not seen a change for {SEEN_S:g} s")
            finally:
                self._waiting.remove((number, seen))
        left_us = self._doubt_until_us - self._clock.monotonic_us()
        if left_us > 0:
            await asyncio.sleep(left_us / _US_PER_S)

    def _settle(self) -> None:
        least = min((line.seen for line in self._lines), default=self._number)
        for number, seen in self._waiting:
            if number <= least and not seen.done():
                seen.set_result(None)

    # ---- requests

    def _take(self, line: _Line, message: Seen | Request) -> None:
        if isinstance(message, Seen):
            line.seen = message.number
            self._settle()
        elif line.outstanding >= MAX_OUTSTANDING:
            error = NexusError(ErrorCode.OVERLOADED, "Too many writes are under way; try again")
            self._write(line, _refusal(message.request, error))
        else:
            line.outstanding += 1
            # Tasks begin in their order, and a frame is taken before its task waits for anything.
            work = self._pushed(message) if isinstance(message, Push) else self._done(message)
            self._spawn(self._answer(line, message.request, work), "request")

    async def _answer(self, line: _Line, request: int, work: Coroutine[Any, Any, object]) -> None:
        try:
            frame = framed(Answer(request, done=msgspec.Raw(encode_value(await work))))
        except NexusError as error:
            frame = _refusal(request, error)
        except Exception:
            log.exception("request_of_reader_failed")
            frame = _failure(request)
        finally:
            line.outstanding -= 1
        self._write(line, frame)

    async def _done(self, message: Register | Forget | Look) -> object:
        if isinstance(message, Look):
            return await self._intake.statuses(message.keys)
        found: object
        if isinstance(message, Register):
            found = await self._intake.register(
                message.spec, replace=message.replace, tenants=message.tenants
            )
        else:
            found = await self._intake.forget(message.key, tenants=message.tenants)
        self._publish()
        await self._seen_by_all()
        return found

    async def _pushed(self, push: Push) -> object:
        found = await self._intake.take(
            push.key, push.number, push.payload, lost=push.lost, tenants=push.tenants
        )
        self._ledger.refresh(push.key)
        self._publish()
        await self._seen_by_all()
        return found


def _refusal(request: int, error: NexusError) -> bytes:
    """What it is refused with; that something went wrong where this itself cannot be packed."""
    try:
        return framed(Answer(request, refused=Refusal.of(error)))
    except Exception:
        log.exception("request_of_reader_failed")
        return _failure(request)


def _failure(request: int) -> bytes:
    failed = NexusError(ErrorCode.INTERNAL_ERROR, "Something went wrong here; try again")
    return framed(Answer(request, refused=Refusal.of(failed)))
