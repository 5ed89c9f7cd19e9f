"""A source that speaks the data port's protocol as badly as a test wants."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from app.transfer.frames import FetchAnswer, FetchRequest, FetchStatus, frame, trailer
from app.transfer.tokens import Direction
from tests.worker.rig import MIB, Worker, checksum, token

Script = Callable[[socket.socket], None]


class EvilSource:
    """Listens, and runs `script` on each connection once its request came."""

    def __init__(self) -> None:
        self.script: Script = lambda _: None
        # Set by a script that has come to the point a test waits for.
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def hang(self, connection: socket.socket) -> None:
        """Do nothing more until the test is over, or the peer gives up."""
        self.reached.set()
        connection.settimeout(30)
        while connection.recv(4096):
            pass

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError):
                    connection.recv(65_536)
                    self.script(connection)


def stating(data: bytes, **other: object) -> bytes:
    """The answer to a fetch of `data`, with some of it different."""
    facts = {"payload_bytes": len(data), "checksum": checksum(data)} | other
    return frame(FetchAnswer(FetchStatus.OK, **facts))


def whole(data: bytes) -> bytes:
    """What an honest source sends."""
    return stating(data) + data + trailer(checksum(data))


def request_of(source: Worker, payload: str, asked: str = "", **changes: str) -> FetchRequest:
    """What a worker `node-x` asks for a sink `s` of it, with some of it different."""
    facts = {"target_worker": "node-x", "sink_id": "s"} | changes
    bound = {"target_worker": "node-x", "data_address": source.data_address}
    vouched = token(source.node, source.tenant, Direction.FETCH, payload, "s", **bound)
    return FetchRequest(vouched, asked or payload, **facts)


def relay(evil: EvilSource, source: Worker, payload: str, stop_after: int) -> Script:
    """A script: fetch from the real source, and pause after some of its answer."""
    host, port = source.data_address.rsplit(":", 1)
    request = request_of(source, payload)

    def script(connection: socket.socket) -> None:
        passed = 0
        with socket.create_connection((host, int(port))) as real:
            real.sendall(frame(request))
            while piece := real.recv(MIB):
                connection.sendall(piece)
                passed += len(piece)
                if passed >= stop_after and not evil.reached.is_set():
                    evil.reached.set()
                    assert evil.go_on.wait(20)

    return script
