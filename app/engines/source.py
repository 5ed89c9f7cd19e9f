"""One engine's event socket: frames to its feed, and what is known of the connection."""

import asyncio
from contextlib import suppress
from typing import Final

import msgspec
import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from app.clock import Clock
from app.engines.catch_up import SEQUENCE_BYTES
from app.engines.feed import Feed
from app.engines.registration import Attach
from app.engines.stream import MAX_SEQUENCE
from app.engines.transport import Transport, names_ipv6
from app.engines.views import EngineView

_TICK_S: Final = 1.0
_RETRY_LEAST_S: Final = 0.5
_RETRY_MOST_S: Final = 10.0
_FAILED_HANDSHAKES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_WATCHED: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | _FAILED_HANDSHAKES
)
log = structlog.get_logger("nexuskv.engines")


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A socket at one moment; counts are since the engine was registered here."""

    peers: int
    connections: int
    disconnections: int
    # Attempts to connect that found nobody there.
    attempts_failed: int
    # Connections to something that speaks another protocol.
    handshakes_failed: int
    # Messages that are no frames.
    malformed: int
    # Replays by how they ended.
    replays: dict[str, int]
    last_replay_fault: str | None
    # Of replayed frames that the subscription does not take, the last one.
    other_topic: str | None
    # Why the socket cannot be opened, None while it is.
    fault: str | None


class EngineSource:
    """Reads one engine's events for as long as it is registered."""

    def __init__(
        self,
        view: EngineView,
        transport: Transport,
        clock: Clock,
        writing: asyncio.Lock | None = None,
    ) -> None:
        assert view.spec.endpoint is not None
        self._view = view
        self._spec = view.spec
        self._endpoint = view.spec.endpoint
        self._transport = transport
        self._clock = clock
        self._feed = Feed(view, transport, clock, writing=writing)
        self._tasks: list[asyncio.Task[None]] = []
        self._peers = self._connections = self._disconnections = 0
        self._attempts_failed = self._handshakes_failed = self._malformed = 0
        # Connections that never stood, and are yet to be said to have ended.
        self._stillborn = 0
        self._fault: str | None = None

    def start(self) -> None:
        name = f"engine {self._spec.instance_id}"
        self._tasks = [
            asyncio.create_task(self._run(), name=name),
            asyncio.create_task(self._tick(), name=f"{name}, tick"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    def status(self) -> SourceStatus:
        return SourceStatus(
            peers=self._peers,
            connections=self._connections,
            disconnections=self._disconnections,
            attempts_failed=self._attempts_failed,
            handshakes_failed=self._handshakes_failed,
            malformed=self._malformed,
            replays=dict(self._feed.replays),
            last_replay_fault=self._feed.last_fault,
            other_topic=self._feed.other_topic,
            fault=self._fault,
        )

    async def _run(self) -> None:
        pause_s = _RETRY_LEAST_S
        while True:
            try:
                await self._attached()
            except zmq.ZMQError as error:
                self._note(f"{self._endpoint}: {error}")
            except Exception as error:
                # A reader that ended would leave the engine's blocks as they were for ever.
                log.exception("engine_source_failed", instance_id=self._spec.instance_id)
                self._note(f"internal error: {type(error).__name__}")
            self._peers, self._feed.proven = 0, False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MOST_S)

    def _note(self, fault: str) -> None:
        if fault != self._fault:
            log.warning("engine_socket_fault", instance_id=self._spec.instance_id, fault=fault)
        self._fault = fault

    async def _attached(self) -> None:
        """Reads until something is wrong with the socket."""
        socket = self._transport.subscriber(self._spec.topic, ipv6=names_ipv6(self._endpoint))
        monitor = socket.get_monitor_socket(_WATCHED)
        try:
            if self._spec.attach is Attach.BIND:
                socket.bind(self._endpoint)
            else:
                socket.connect(self._endpoint)
            self._fault = None
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(monitor))
                tasks.create_task(self._read(socket))
        finally:
            socket.disable_monitor()
            socket.close(linger=0)

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            parts = await socket.recv_multipart()
            number = int.from_bytes(parts[1], "big") if len(parts) == 3 else -1
            if number >= 0 and len(parts[1]) == SEQUENCE_BYTES and number <= MAX_SEQUENCE:
                await self._feed.take(number, parts[2])
            else:
                self._malformed += 1
            # A socket that has more to read does not wait by itself.
            await asyncio.sleep(0)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._peers += 1
                self._connections += 1
                await self._feed.connected()
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self._attempts_failed += 1
            elif event & _FAILED_HANDSHAKES:
                self._handshakes_failed += 1
                self._stillborn += 1
            elif event == zmq.EVENT_DISCONNECTED:
                if self._stillborn:
                    self._stillborn -= 1
                    continue
                self._peers = max(0, self._peers - 1)
                self._disconnections += 1
                if not self._peers:
                    self._feed.proven = False

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if not self._peers:
                continue
            if self._feed.proven:
                self._view.alive(self._clock.now_us())
            await self._feed.retry()
