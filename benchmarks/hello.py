"""The yardstick: a bare ASGI hello under uvicorn, with the server settings of the service."""

import asyncio
import socket
import sys

import uvicorn
import uvloop

_BODY = b"Hello, world!"
_HEADERS = [(b"content-type", b"text/plain"), (b"content-length", str(len(_BODY)).encode())]


async def hello(scope, receive, send) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY})


def main() -> None:
    bound = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(
        hello,
        lifespan="off",
        http="httptools",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[bound]))


if __name__ == "__main__":
    main()
