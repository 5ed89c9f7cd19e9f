"""Runs the API in this process: one socket, one event loop, a clean end."""

import asyncio
import gc
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Final

import structlog
import uvicorn
import uvloop

from app.bridge.http import BridgeHttpProtocol
from app.bridge.schemas import BRIDGE_SCHEMA
from app.contract.registration import Registration
from app.index.registry import RegisterStatus
from app.main import NexusApp, create_app
from app.services import Services
from app.settings import Settings

_BACKLOG: Final = 2048
_KEEP_ALIVE_S: Final = 75
_GRACEFUL_S: Final = 10
_EVIDENCE_LEVEL: Final = "protocol"
# Requests make many short-lived objects and no cycles; collecting every 700 of them is waste.
_GC_THRESHOLDS: Final = (50_000, 10, 10)
log = structlog.get_logger("nexuskv.server")


class ListenError(ValueError):
    """The --listen address cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Listening:
    """What is told to a person, and to the ready file, once requests are answered."""

    base_url: str
    admin_key_file: Path | None


def bind(listen: str, option: str = "--listen") -> socket.socket:
    """A listening socket for `HOST:PORT`; port 0 takes a free one. Raises ListenError."""
    host, separator, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ListenError(f"{option} must be HOST:PORT, e.g. 127.0.0.1:9099, not {listen!r}")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise ListenError(f"cannot listen on {listen}: {error.strerror or error}") from error
    return bound


def is_loopback(bound: socket.socket) -> bool:
    return ip_address(bound.getsockname()[0]).is_loopback


def base_url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, but a signal ends it without being raised again: its caller has more to close."""

    def __init__(
        self, config: uvicorn.Config, services: Services, before_end: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._services = services
        self._before_end = before_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._before_end()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with handled(self.handle_exit, [signal.SIGINT, *terminations()]):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._services.draining = True
        super().handle_exit(sig, frame)


def terminations() -> list[signal.Signals]:
    """The signals beside SIGINT that end a run: also of a terminal that closes, unless nohup."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, *hangup]


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], object], signals: Sequence[signal.Signals]
) -> Generator[None, None, None]:
    """Gives these signals to `handler` for a while."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


class ServerRun:
    """One run of the API on a bound socket, and on others that are this process's own."""

    def __init__(
        self,
        settings: Settings,
        bound: socket.socket,
        *,
        own_sockets: Sequence[socket.socket] = (),
        fixtures: Sequence[Sequence[Registration]] = (),
        ready_file: Path | None,
        admin_key_file: Path | None = None,
    ) -> None:
        self.settings = settings
        self._sockets = [bound, *own_sockets]
        self._fixtures = fixtures
        self._ready_file = ready_file
        self._listening = Listening(base_url(bound), admin_key_file)
        self._failure: Exception | None = None

    def run(self) -> None:
        """Serves until SIGINT or SIGTERM; drains, then returns.

        Raises what kept a fixture from being registered.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())
        if self._failure is not None:
            raise self._failure

    def announce(self, listening: Listening) -> None:
        """Called once when the service is ready; the commands override it."""

    async def before_ready(self, services: Services) -> None:
        """Waited for before the service is announced: for what a command started beside it."""

    async def before_end(self) -> None:
        """Waited for after a signal, while requests are still answered."""

    async def tend(self) -> None:
        """Runs beside the server: for what a command started and has to look after."""

    async def _serve(self) -> None:
        app = create_app(self.settings)
        services: Services = app.state.services
        config = uvicorn.Config(
            app,
            http=BridgeHttpProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            # A local proxy's X-Forwarded-For must not choose what the keyless rule sees.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACEFUL_S,
        )
        server = _Server(config, services, self.before_end)
        tend = asyncio.create_task(self.tend())
        begin = asyncio.create_task(self._begin(app, server))
        try:
            await server.serve(sockets=self._sockets)
        finally:
            tend.cancel()
            begin.cancel()
            await asyncio.gather(begin, tend, return_exceptions=True)

    async def _begin(self, app: NexusApp, server: uvicorn.Server) -> None:
        services: Services = app.state.services
        try:
            await services.loaded.wait()
            for states in self._fixtures:
                await _register(services, states)
            await self.before_ready(services)
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            # The file last: who waits for it may look for what was said as well.
            self.announce(self._listening)
            if self._ready_file is not None:
                write_ready_file(self._ready_file, self._listening)
        except Exception as error:  # noqa: BLE001 - raised again by run(), after a clean end
            self._failure = error
            server.should_exit = True


async def _register(services: Services, states: Sequence[Registration]) -> None:
    """A stored state of a higher generation, or other content, stays; the log says so."""
    results = await services.registry.register(states)
    for state, result in zip(states, results, strict=True):
        if result.status is RegisterStatus.CONFLICT:
            log.warning(
                "fixture_state_not_registered",
                entry_id=state.entry.identity.entry_id,
                generation=state.entry.identity.version.generation,
                stored_generation=result.generation,
            )


def write_ready_file(
    path: Path, listening: Listening, processes: Sequence[Mapping[str, object]] = ()
) -> None:
    """Appears whole or not at all: whoever waits for the file may read it at once."""
    content: dict[str, object] = {
        "schema_version": BRIDGE_SCHEMA,
        "base_url": listening.base_url,
        "evidence_level": _EVIDENCE_LEVEL,
    }
    if listening.admin_key_file is not None:
        content["admin_key_file"] = str(listening.admin_key_file)
    if processes:
        content["processes"] = processes
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(json.dumps(content) + "\n", encoding="utf-8")
    staged.replace(path)
