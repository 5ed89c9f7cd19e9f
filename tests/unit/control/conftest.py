"""Small pieces the control-plane tests share: a settable clock, and a real server on a thread."""

import asyncio
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import uvicorn
from starlette.types import ASGIApp

from tests.control.clock import SetClock
from tests.control.logs import captured_logs


class _AnnouncedServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@contextmanager
def serving(app: ASGIApp) -> Iterator[int]:
    """Run `app` under uvicorn as production does; yields the port."""
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    server = _AnnouncedServer(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            assert server.up.wait(20), "uvicorn did not start"
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture(scope="session")
def serve() -> Callable[[ASGIApp], AbstractContextManager[int]]:
    """`with serve(app) as port:` runs the application under a real server."""
    return serving


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    """What the service would write to stderr; the process's logging is put back afterwards."""
    with captured_logs() as stream:
        yield stream
