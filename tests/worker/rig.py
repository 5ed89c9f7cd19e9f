"""A worker as users run it, and a caller of it that holds the tokens it needs."""

import copy
import os
import signal
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import xxhash

from app.clock import SystemClock
from app.transfer.tokens import Direction, Grant, TokenKeys
from tests.process.command import Command
from tests.worker.published import check_answer

SECRET = "tests-only-worker-" + "0123456789abcdef" * 2
KEYS = TokenKeys([SECRET])
MIB = 1024 * 1024
D = Direction


def now_s() -> int:
    return SystemClock().now_us() // 1_000_000


def token(
    worker: str, tenant: str, direction: D, payload: str = "", sink: str = "", **fetch: str
) -> str:
    """`fetch` are the further facts of a FETCH token."""
    grant = Grant(worker, tenant, direction, payload, sink, **fetch)
    return KEYS.sign(grant, now_s=now_s(), ttl_s=60)


def some_bytes(count: int) -> bytes:
    return os.urandom(count)


def checksum(data: bytes) -> str:
    return xxhash.xxh3_128(data).hexdigest()


class Worker:
    """One `nexuskv worker`, and what a tenant asks of it."""

    def __init__(
        self,
        directory: Path,
        node: str,
        *options: str,
        dram_bytes: int = 32 * MIB,
        tenant: str = "acme",
        env: dict[str, str] | None = None,
    ) -> None:
        self.node = node
        self.tenant = tenant
        self.sinks: list[tuple[str, int]] = []
        directory.mkdir()
        self.command = Command(
            directory,
            "worker",
            *("--node", node, "--dram-bytes", str(dram_bytes)),
            *("--ready-file", str(directory / "ready.json"), *options),
            env=env or {"NEXUSKV_WORKER_SECRET": SECRET},
        )
        self.http = httpx.Client(timeout=30, trust_env=False)

    def of(self, tenant: str) -> "Worker":
        """The same worker, for another tenant."""
        same = copy.copy(self)
        same.tenant = tenant
        same.sinks = []
        return same

    @cached_property
    def ready(self) -> dict[str, Any]:
        """What its ready file says; also when the process is gone since."""
        return self.command.ready()

    @property
    def url(self) -> str:
        url: str = self.ready["url"]
        return url

    @property
    def data_address(self) -> str:
        address: str = self.ready["data_address"]
        return address

    def ask(
        self, method: str, path: str, direction: D, payload: str = "", sink: str = "", **options
    ) -> httpx.Response:
        """The answer, which is one of those that the published document has."""
        headers = {"authorization": f"Bearer {self.token(direction, payload, sink)}"}
        headers |= options.pop("headers", {})
        answer = self.http.request(method, self.url + path, headers=headers, **options)
        check_answer(method, path, answer)
        return answer

    def token(self, direction: D, payload: str = "", sink: str = "") -> str:
        return token(self.node, self.tenant, direction, payload, sink)

    def put(self, payload: str, data: bytes, **headers: str) -> httpx.Response:
        path = f"/v1/payloads/{payload}"
        return self.ask("PUT", path, D.PUT_PAYLOAD, payload, content=data, headers=headers)

    def get(self, payload: str, method: str = "GET", **headers: str) -> httpx.Response:
        return self.ask(method, f"/v1/payloads/{payload}", D.GET_PAYLOAD, payload, headers=headers)

    def facts(self, payload: str) -> httpx.Response:
        return self.ask("GET", f"/v1/payloads/{payload}/facts", D.GET_PAYLOAD, payload)

    def delete(self, payload: str) -> httpx.Response:
        return self.ask("DELETE", f"/v1/payloads/{payload}", D.DELETE_PAYLOAD, payload)

    def sink(self, payload_bytes: int, generation: int = 1, **more: Any) -> httpx.Response:
        body = {"payload_bytes": payload_bytes, "engine_id": "engine-1"}
        body |= {"engine_generation": generation, **more}
        return self.ask("POST", "/v1/sinks", D.CREATE_SINK, json=body)

    def new_sink(self, payload_bytes: int, generation: int = 1, **more: Any) -> str:
        answer = self.sink(payload_bytes, generation, **more)
        assert answer.status_code == 201, answer.text
        made: str = answer.json()["sink_id"]
        self.sinks.append((made, generation))
        return made

    def discard_sinks(self) -> None:
        """Give the memory of every sink back, whatever became of it."""
        for sink, generation in self.sinks:
            self.finish(sink, "discard", generation)

    def sink_facts(self, sink: str) -> dict[str, Any]:
        return self.ask("GET", f"/v1/sinks/{sink}", D.READ_SINK, sink=sink).json()

    def content(self, sink: str, **headers: str) -> httpx.Response:
        path = f"/v1/sinks/{sink}/content"
        return self.ask("GET", path, D.READ_SINK, sink=sink, headers=headers)

    def finish(self, sink: str, how: str, generation: int = 1, **more: Any) -> httpx.Response:
        body = {"engine_id": "engine-1", "engine_generation": generation, **more}
        return self.ask("POST", f"/v1/sinks/{sink}:{how}", D.FINISH_SINK, sink=sink, json=body)

    def order(
        self, source: "Worker | str", payload: str, session: str, **more: Any
    ) -> dict[str, Any]:
        """The body of an order; `source` is a worker, or the address of something else."""
        if isinstance(source, Worker):
            name, address = source.node, source.data_address
        else:
            name, address = "elsewhere", source
        vouched = token(
            name, self.tenant, D.FETCH, payload, more.get("target_sink_id", ""),
            target_worker=self.node,
            target_payload_id=more.get("target_payload_id", ""),
            data_address=address,
        )  # fmt: skip
        found = {"worker": name, "payload_id": payload, "data_address": address, "token": vouched}
        found |= more.pop("known", {})
        body = {"session_id": session, "source": found, "backend": "baseline_transport"}
        return body | more

    def transfer(
        self, source: "Worker | str", payload: str, session: str, **more: Any
    ) -> dict[str, Any]:
        """Order it, and the facts when the answer came."""
        answer = self.send(self.order(source, payload, session, **more))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, order: dict[str, Any]) -> httpx.Response:
        payload, sink = order["source"]["payload_id"], order.get("target_sink_id", "")
        return self.ask("POST", "/v1/transfers", D.TRANSFER, payload, sink, json=order)

    def session(
        self, session: str, payload: str, sink: str = "", method: str = "GET"
    ) -> httpx.Response:
        return self.ask(method, f"/v1/transfers/{session}", D.TRANSFER, payload, sink)

    def metrics(self) -> dict[str, float]:
        lines = self.http.get(self.url + "/metrics").text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def leaks(self) -> dict[str, float]:
        """What is held without a reason; empty when nothing is."""
        now = self.metrics()
        sinks = sum(value for name, value in now.items() if name.startswith(SINKS))
        reasons = now["nexuskv_worker_payloads"] + sinks
        held = {
            "pins": now["nexuskv_worker_pins"],
            "pinned_bytes": now["nexuskv_worker_pinned_bytes"],
            "transfers": now["nexuskv_worker_transfers"],
            "filling": now['nexuskv_worker_sinks{state="filling"}'],
            "blocks": now["nexuskv_worker_blocks"] - reasons,
        }
        return {name: value for name, value in held.items() if value}

    def kill(self) -> None:
        self.command.process.send_signal(signal.SIGKILL)
        self.command.wait()

    def close(self) -> None:
        self.http.close()
        self.command.discard()


SINKS = "nexuskv_worker_sinks{"
