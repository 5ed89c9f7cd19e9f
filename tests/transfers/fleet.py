"""One API and its workers as processes, and the story of a state as a test tells it."""

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from app.control.keys import ALL_TENANTS, Scope
from app.transfer.wire import SINK_NAMESPACE
from tests.fixtures.service import ServiceProcess, decisions_of
from tests.fixtures.wire import TOKENS, estimate_body, lookup_body, materialize_body, registration
from tests.process.waiting import until
from tests.transfers.holding import Relay
from tests.worker.rig import MIB, SECRET, Worker, some_bytes

ENGINE, GENERATION = "engine-1", 1
DEADLINE_S = 2.0


class Fleet:
    """`node-a` holds payloads, `node-b` has the sinks; `more` names further workers."""

    def __init__(
        self,
        database_url: str,
        directory: Path,
        *,
        dram_bytes: int = 32 * MIB,
        deadline_s: float = DEADLINE_S,
        **env: str,
    ) -> None:
        self.directory = directory
        self.dram_bytes = dram_bytes
        self.service = ServiceProcess(
            database_url,
            directory,
            NEXUSKV_WORKER_SECRET=SECRET,
            NEXUSKV_WORKER_SILENCE_S="1.5",
            NEXUSKV_TRANSFER_DEADLINE_S=str(deadline_s),
            **env,
        ).start()
        self.workers: dict[str, Worker] = {}
        self.client = self.service.client()
        for node in ("node-a", "node-b"):
            self.start_worker(node)

    @property
    def a(self) -> Worker:
        return self.workers["node-a"]

    @property
    def b(self) -> Worker:
        return self.workers["node-b"]

    def start_worker(self, node: str, *more: str, **options: Any) -> Worker:
        """A process of this name, in the place of an older one, once the API has heard it."""
        if (older := self.workers.get(node)) is not None:
            older.close()
        number = len(list(self.directory.glob(f"{node}-*")))
        options.setdefault("dram_bytes", self.dram_bytes)
        worker = Worker(
            self.directory / f"{node}-{number}",
            node,
            *("--api-url", self.service.url, *more),
            **options,
        )
        self.workers[node] = worker
        instance = worker.ready["instance_id"]
        until(
            lambda: any(
                known["instance_id"] == instance and known["available"] for known in self.known()
            ),
            f"{node} is registered",
        )
        return worker

    def start_behind(self, data: Relay, node: str, control: Relay | None = None) -> Worker:
        """A worker whose data port, or both ports, others reach through relays alone."""
        data.upstream = free_address()
        options = ["--data-listen", data.upstream, "--advertise-data", data.address]
        if control is not None:
            control.upstream = free_address()
            url = f"http://{control.address}"
            options += ["--listen", control.upstream, "--advertise-url", url]
        return self.start_worker(node, *options)

    def restart_api(self) -> None:
        """After a kill or a stop: where it was before, so that the workers find it again."""
        self.service.options = ("--listen", self.service.url.removeprefix("http://"))
        self.service.start()
        self.client.close()
        self.client = self.service.client()

    def wait_heard(self) -> None:
        """Returns once the API has heard of every worker."""
        until(
            lambda: {one["name"] for one in self.known() if one["available"]} >= set(self.workers),
            "every worker is heard",
        )

    def wait_beats(self, node: str, more: int) -> None:
        """Returns once the API has taken so many more heartbeats of this worker."""
        name = "nexuskv_worker_heartbeats_total"
        worker = self.workers[node]
        begin = worker.metrics()[name]
        until(lambda: worker.metrics()[name] >= begin + more, f"{node} is heard {more} times")

    def known(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.client.get("/v1/workers").json()["items"]
        return items

    def wait_silent(self, node: str) -> None:
        until(
            lambda: not any(one["available"] for one in self.known() if one["name"] == node),
            f"{node} is silent",
        )

    def close(self) -> None:
        self.client.close()
        for worker in self.workers.values():
            with suppress(ProcessLookupError):
                worker.close()
        process = self.service.process
        if process is not None and process.poll() is None:
            self.service.kill()

    def story(self, tenant: str, **changes: Any) -> "Story":
        return Story(self, tenant, **changes)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Story:
    """One tenant's state on `node` and an engine that wants it on `node-b`."""

    def __init__(
        self,
        fleet: Fleet,
        tenant: str,
        *,
        payload_bytes: int = 4096,
        payload_id: str = "",
        node: str = "node-a",
    ) -> None:
        self.fleet = fleet
        self.tenant = tenant
        self.node = node
        # Its own: some tests find by it whose bytes pass by.
        self.payload_id = payload_id or f"of-{tenant}"
        self.data = some_bytes(payload_bytes)
        self.sinks: list[str] = []

    @property
    def source(self) -> Worker:
        return self.fleet.workers[self.node].of(self.tenant)

    @property
    def target(self) -> Worker:
        return self.fleet.b.of(self.tenant)

    def upload(self) -> None:
        assert self.source.put(self.payload_id, self.data).status_code in (200, 201)

    def register(self, **changes: Any) -> None:
        changes.setdefault("locator", f"node://{self.node}/state/{self.payload_id}")
        entry = registration(self.tenant, **changes)
        answer = self.fleet.client.post("/v1/states", json={"entries": [entry]})
        assert answer.status_code in (200, 201), answer.text

    def ready(self) -> "Story":
        self.upload()
        self.register()
        return self

    def lookup(self, **changes: Any) -> httpx.Response:
        body = lookup_body(self.tenant, **changes)
        return self.fleet.client.post("/locus/v1/lookup", json=body)

    def hit(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.lookup().raise_for_status().json()["match_result"]
        return found

    def estimate(
        self, residency: str = "node-b", hit: dict[str, Any] | None = None
    ) -> httpx.Response:
        """Of a hit of now, or of an earlier one."""
        hit = hit or self.hit()
        assert hit is not None
        location = hit["entry"]["location"]
        body = estimate_body(
            hit["validation"]["source_handle"],
            source_locator=location["locator"],
            source_tier=location["tier"],
            target_engine_id=ENGINE,
            target_engine_generation=GENERATION,
            target_residency=residency,
        )
        return self.fleet.client.post("/locus/v1/estimate", json=body)

    def option(self, residency: str = "node-b") -> dict[str, Any]:
        answer = self.estimate(residency)
        assert answer.status_code == 200, answer.text
        option: dict[str, Any] = answer.json()
        return option

    def sink(self, payload_bytes: int | None = None, **more: Any) -> str:
        made = self.target.new_sink(payload_bytes or len(self.data), **more)
        self.sinks.append(made)
        return made

    def body(self, option: dict[str, Any], sink: str, **changes: Any) -> dict[str, Any]:
        return materialize_body(
            option,
            **{
                "target_engine_id": ENGINE,
                "target_engine_generation": GENERATION,
                "sink_namespace": SINK_NAMESPACE,
                "sink_value": sink,
                **changes,
            },
        )

    def materialize(self, option: dict[str, Any], sink: str, **changes: Any) -> httpx.Response:
        body = self.body(option, sink, **changes)
        return self.fleet.client.post("/locus/v1/materialize", json=body)

    def decisions(self, expected: int, **filters: str) -> list[dict[str, Any]]:
        return decisions_of(self.fleet.client, expected, tenant=self.tenant, **filters)

    def history(self, answer: httpx.Response, statuses: list[str]) -> dict[str, Any]:
        """The decision behind an answer, once its chain has these outcomes."""
        decision_id = answer.headers["x-nexuskv-decision-id"]
        found: dict[str, Any] = {}

        def there() -> bool:
            answer = self.fleet.client.get(f"/v1/decisions/{decision_id}")
            if answer.status_code == 404:
                return False
            found.update(answer.raise_for_status().json())
            return sorted(one["status"] for one in found["outcomes"]) == sorted(statuses)

        until(there, lambda: f"the history shows {statuses}; {json.dumps(found.get('outcomes'))}")
        return found

    def gone(self, *payload_ids: str) -> list[dict[str, str]]:
        """A worker's report that the tenant has these there no more."""
        return [{"tenant": self.tenant, "payload_id": name} for name in payload_ids]

    def charged(self) -> dict[str, int]:
        """What the tenant is charged for: bytes, entries, transfers."""
        found = self.fleet.client.get(f"/v1/quotas/{self.tenant}").raise_for_status().json()
        return {name: found[name] for name in ("payload_bytes", "entries", "transfers")}

    def key(self, *scopes: Scope) -> str:
        return self.fleet.service.key(*scopes, tenants=(self.tenant,))


__all__ = ["ALL_TENANTS", "DEADLINE_S", "TOKENS", "Fleet", "Story"]
