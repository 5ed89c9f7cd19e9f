"""A worker whose control port a test writes: it answers orders by script."""

import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import msgspec

from app.transfer.tokens import Grant
from app.transfer.wire import NewTransfer, SinkFacts, SinkState, TransferFacts
from tests.topology.workers import instance
from tests.transfers.announced import Announced
from tests.transfers.fleet import ENGINE, GENERATION, Fleet, Story
from tests.worker.rig import KEYS, now_s

SINK = "sink-1"
CHECKSUM = "0123456789abcdef" * 2


class Call:
    """One request, and what may be said to it."""

    def __init__(
        self, worker: str, handler: BaseHTTPRequestHandler, ended: threading.Event
    ) -> None:
        self.path = handler.path
        length = int(handler.headers.get("content-length", 0))
        self.body = handler.rfile.read(length)
        token = handler.headers["authorization"].removeprefix("Bearer ")
        self.grant: Grant = KEYS.verify(token, worker=worker, now_s=now_s())
        self._handler = handler
        self._ended = ended

    def say(self, value: Any, status: int = 200) -> None:
        body = msgspec.json.encode(value)
        self.raw(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)

    def raw(self, data: bytes) -> None:
        """These bytes, and the end of the connection."""
        with suppress(OSError):
            self._handler.wfile.write(data)

    def hang(self) -> None:
        self._ended.wait(30)

    def completed(self, **changes: Any) -> dict[str, Any]:
        """The facts of the ordered transfer as a worker that did it states them."""
        order = msgspec.json.decode(self.body, type=NewTransfer)
        facts = TransferFacts(
            session_id=order.session_id,
            status="completed",
            backend=order.backend,
            source_worker=order.source.worker,
            payload_id=order.source.payload_id,
            target_sink_id=order.target_sink_id,
            target_payload_id=order.target_payload_id,
            bytes_transferred=order.source.payload_bytes or 0,
            checksum=CHECKSUM,
            transfer_us=120,
        )
        return msgspec.to_builtins(facts) | changes

    def sink(self, **changes: Any) -> dict[str, Any]:
        """The facts of the sink that is asked for: open, and of the size of a story's payload."""
        sink_id = self.path.rpartition("/")[2]
        facts = SinkFacts(sink_id, self.grant.tenant, 4096, ENGINE, GENERATION, SinkState.OPEN)
        return msgspec.to_builtins(facts) | changes


Script = Callable[[Call], None]


def completes(call: Call) -> None:
    call.say(call.completed())


def has_the_sink(call: Call) -> None:
    call.say(call.sink())


def has_no_such_transfer(call: Call) -> None:
    call.say({"code": "not_found"}, 404)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # More than any test asks at once: a connection that finds no place comes back a second later.
    request_queue_size = 256


class ScriptedTarget(Announced):
    """Answers for every sink with `on_sink`, and for orders with `on_order`."""

    def __init__(self, fleet: Fleet, name: str = "node-scripted") -> None:
        self.orders: list[NewTransfer] = []
        self.cancelled: list[str] = []
        self._ended = threading.Event()
        self.be_good()
        self._control = _Server(("127.0.0.1", 0), self._handler())
        self._serving = threading.Thread(target=self._control.serve_forever)
        super().__init__(fleet, name, url=f"http://127.0.0.1:{self._control.server_port}")

    def be_good(self) -> None:
        self.on_sink: Script = has_the_sink
        self.on_order: Script = completes
        self.on_cancel: Script = has_no_such_transfer

    def tell_consumed(self, story: Story, order: NewTransfer) -> None:
        """That the runtime took the sink which this order filled."""
        event = {
            "event_id": instance(),
            "sink_id": order.target_sink_id,
            "tenant": story.tenant,
            "state": "consumed",
            "at_us": now_s() * 1_000_000,
            "payload_bytes": order.source.payload_bytes,
            "session_id": order.session_id,
            "decision_id": order.decision_id,
        }
        self.say(events=[event])
        self.say(events=[])

    def answer(self, method: str, call: Call) -> None:
        if method == "POST":
            self.orders.append(msgspec.json.decode(call.body, type=NewTransfer))
            self.on_order(call)
        elif method == "DELETE":
            self.cancelled.append(call.path.rpartition("/")[2])
            self.on_cancel(call)
        else:
            self.on_sink(call)

    def __enter__(self) -> Self:
        self._serving.start()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        super().__exit__(*exc)
        self._control.shutdown()
        self._serving.join()
        self._control.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        target = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                target.answer(self.command, Call(target.name, self, target._ended))

            do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the names that are looked for

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler
