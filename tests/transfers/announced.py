"""Workers that register because a test says so: with any backends, and with any bytes."""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import msgspec

from app.transfer.wire import PayloadFacts
from tests.fixtures.wire import heartbeat_body
from tests.topology.workers import instance
from tests.transfers.fleet import Fleet
from tests.worker.evil import EvilSource, Script, whole
from tests.worker.rig import KEYS, Worker, checksum, now_s

BEAT_S = 0.3


class Announced:
    """Heartbeats of `name`, sent with the admin's key until the end of a `with`."""

    def __init__(self, fleet: Fleet, name: str, **body: Any) -> None:
        self._fleet = fleet
        self.name = name
        self._body = heartbeat_body(**({"instance_id": instance()} | body))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def say(self, **changes: Any) -> None:
        """A heartbeat now; it is known when this returns, and repeated from then on."""
        self._body = self._body | changes
        answer = self._fleet.client.put(f"/v1/workers/{self.name}", json=self._body)
        assert answer.status_code == 200, answer.text

    def fall_silent(self) -> None:
        self._end.set()

    def __enter__(self) -> Self:
        self.say()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._fleet.client.delete(f"/v1/workers/{self.name}")

    def _beat(self) -> None:
        with self._fleet.service.client() as client:
            while not self._end.wait(BEAT_S):
                client.put(f"/v1/workers/{self.name}", json=self._body)


def announced(fleet: Fleet, worker: Worker, **body: Any) -> Announced:
    """A worker that runs and knows no API, so that only the test says what it has to offer."""
    addresses = {"url": worker.url, "data_address": worker.data_address}
    body |= addresses | {"instance_id": worker.ready["instance_id"]}
    return Announced(fleet, worker.node, **body)


class FalseSource(Announced):
    """Knows every payload as `data`; its data port follows `script`, its control port `held`."""

    def __init__(self, fleet: Fleet, name: str, data: bytes) -> None:
        self.data = data
        self._evil = EvilSource()
        self.be_honest()
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self._control = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._serving = threading.Thread(target=self._control.serve_forever)
        url = f"http://127.0.0.1:{self._control.server_port}"
        super().__init__(fleet, name, url=url, data_address=self._evil.address)

    @property
    def reached(self) -> threading.Event:
        return self._evil.reached

    def be_honest(self) -> None:
        self._evil.script = lambda connection: connection.sendall(whole(self.data))

    def follow(self, script: Script) -> None:
        self._evil.script = script

    def hang(self) -> None:
        """From now on every reader waits for bytes that do not come."""
        self._evil.reached.clear()
        self._evil.script = self._evil.hang

    def __enter__(self) -> Self:
        self._evil.__enter__()
        self._serving.start()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self.open.set()
        self._evil.__exit__(*exc)
        self._control.shutdown()
        self._serving.join()
        self._control.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        source = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                token = self.headers["authorization"].removeprefix("Bearer ")
                grant = KEYS.verify(token, worker=source.name, now_s=now_s())
                facts = PayloadFacts(
                    grant.payload_id, grant.tenant, len(source.data), checksum(source.data)
                )
                source.asked.set()
                source.open.wait(30)
                body = msgspec.json.encode(facts)
                with suppress(OSError):
                    self.send_response(200)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        return Handler
