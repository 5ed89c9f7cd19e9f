"""A connection whose requests are answered at once is closed when it is idle, and not before."""

import asyncio
import time
from typing import Any

import uvicorn

from app.bridge.http import BridgeHttpProtocol

KEEP_ALIVE_S = 1
SLACK_S = 10
REQUEST = b"POST /at-once HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nok"


class Application:
    """Answers at once with what was sent, and counts."""

    def __init__(self) -> None:
        self.at_once = {b"/at-once": self.answer}
        self.answered = 0

    def answer(self, query: bytes, headers: Any, body: bytes) -> tuple[int, Any, bytes]:
        self.answered += 1
        return 200, [(b"content-length", b"%d" % len(body))], body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("every request is answered at once")


async def use(port: int) -> tuple[float, float]:
    """How long a connection was in use, and idle until it was closed, in seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.monotonic()
    while time.monotonic() - begun < 2 * KEEP_ALIVE_S:
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(2) == b"ok"
        last = time.monotonic()
    async with asyncio.timeout(KEEP_ALIVE_S + SLACK_S):
        assert await reader.read() == b""
    writer.close()
    return last - begun, time.monotonic() - last


async def test_a_connection_in_use_is_not_idle() -> None:
    application = Application()
    config = uvicorn.Config(
        application,
        port=0,
        http=BridgeHttpProtocol,
        lifespan="off",
        proxy_headers=False,
        log_config=None,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    port = server.servers[0].sockets[0].getsockname()[1]
    in_use_s, idle_s = await use(port)
    server.should_exit = True
    await serving
    assert application.answered > 10
    assert in_use_s > 1.9 * KEEP_ALIVE_S
    assert idle_s >= 0.9 * KEEP_ALIVE_S
