"""What an orchestrator and a scraper ask, and how long they wait."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from app.control.health import PolicyFacts, ReadinessFacts, ReadinessProbe, health_router
from app.db.migrate import SchemaStatus
from app.errors import ErrorCode, NexusError
from app.metrics import Metrics

CURRENT = SchemaStatus(current="0001", head="0001", state="current")


class Parts:
    """The parts of a replica, each of which can fail."""

    def __init__(self) -> None:
        self.schema = CURRENT
        self.trouble: Exception | None = None
        self.hang = False
        self.asked = 0
        self.keys = self.index = self.decisions = True
        self.policy = PolicyFacts("3:sha256:0123", loaded=True, fault=None)
        self.draining = False

    async def schema_status(self) -> SchemaStatus:
        self.asked += 1
        if self.hang:
            await asyncio.Event().wait()
        if self.trouble is not None:
            raise self.trouble
        return self.schema

    def facts(self) -> ReadinessFacts:
        return ReadinessFacts(
            schema_status=self.schema_status,
            keys_loaded=lambda: self.keys,
            index_loaded=lambda: self.index,
            policy=lambda: self.policy,
            decisions_alive=lambda: self.decisions,
            draining=lambda: self.draining,
            implementation="compiled",
        )


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="0", implementation="compiled")


@pytest.fixture
async def client(parts, clock, metrics):
    app = FastAPI()
    app.include_router(health_router(ReadinessProbe(parts.facts(), clock, metrics), metrics))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        yield client


async def test_ready_names_every_check_and_the_index_that_runs(client) -> None:
    response = await client.get("/readyz")
    assert response.status_code == 200
    body = response.json()
    assert body["status"] == "ready"
    assert body["implementation"] == "compiled"
    names = [check["name"] for check in body["checks"]]
    assert names == ["database", "keys", "index", "policy", "decisions", "serving"]
    assert all(check["ok"] for check in body["checks"])


async def test_a_policy_that_cannot_be_loaded_is_told_and_takes_nobody_out(client, parts) -> None:
    parts.policy = PolicyFacts("3:sha256:0123", loaded=True, fault="its row is damaged")
    response = await client.get("/readyz")
    assert response.status_code == 200
    (check,) = [one for one in response.json()["checks"] if one["name"] == "policy"]
    assert check["detail"] == (
        "3:sha256:0123 is in force; the latest activation is not: its row is damaged"
    )


@pytest.mark.parametrize(
    ("part", "value", "name"),
    [
        ("policy", PolicyFacts("file:x", loaded=False, fault=None), "policy"),
        ("schema", SchemaStatus(None, "0001", "absent"), "database"),
        ("schema", SchemaStatus("0000", "0001", "behind"), "database"),
        ("trouble", NexusError(ErrorCode.DATABASE_UNAVAILABLE, "x", internal="pw"), "database"),
        ("trouble", RuntimeError("postgresql://u:pw@h/d"), "database"),
        ("keys", False, "keys"),
        ("index", False, "index"),
        ("decisions", False, "decisions"),
        ("draining", True, "serving"),
    ],
)
async def test_one_failing_part_is_enough_and_is_named(
    client, parts, part: str, value: object, name: str
) -> None:
    setattr(parts, part, value)
    response = await client.get("/readyz")
    assert response.status_code == 503
    body = response.json()
    assert body["status"] == "unready"
    failing = [check for check in body["checks"] if not check["ok"]]
    assert [check["name"] for check in failing] == [name]
    assert failing[0]["detail"]
    assert "pw" not in response.text


async def test_postgres_is_asked_once_a_second_whoever_asks(client, parts, clock) -> None:
    await asyncio.gather(*(client.get("/readyz") for _ in range(20)))
    assert parts.asked == 1
    clock.advance(0.9)
    await client.get("/readyz")
    assert parts.asked == 1
    clock.advance(0.2)
    parts.trouble = OSError()
    assert (await client.get("/readyz")).status_code == 503
    assert parts.asked == 2
    # Only the database part is cached: the others answer as they are.
    parts.trouble = None
    clock.advance(2)
    parts.index = False
    assert (await client.get("/readyz")).status_code == 503
    parts.index = True
    assert (await client.get("/readyz")).status_code == 200


async def test_a_database_that_hangs_does_not_hang_the_probe(
    client, parts, monkeypatch, metrics
) -> None:
    monkeypatch.setattr("app.control.health.DATABASE_CHECK_S", 0.05)
    parts.hang = True
    response = await asyncio.wait_for(client.get("/readyz"), 5)
    assert response.status_code == 503
    assert b"nexuskv_database_up 0.0" in metrics.render()[1]


async def test_liveness_never_asks_the_database(client, parts) -> None:
    parts.trouble = OSError()
    assert (await client.get("/livez")).json() == {"status": "ok"}
    assert parts.asked == 0


async def test_metrics_follow_the_last_check(client, parts, clock) -> None:
    await client.get("/readyz")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert "nexuskv_database_up 1.0" in response.text
    scraper = {"accept": "application/openmetrics-text"}
    response = await client.get("/metrics", headers=scraper)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


async def test_every_answer_is_declared(client) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert set(paths["/readyz"]["get"]["responses"]) == {"200", "503"}
    assert "text/plain" in paths["/metrics"]["get"]["responses"]["200"]["content"]
    assert "200" in paths["/livez"]["get"]["responses"]
