"""`/livez`, `/readyz` and `/metrics`: is the process alive, may it get traffic, how does it do.

Liveness never touches Postgres: a database outage must not make an orchestrator kill replicas that
still answer from memory. Readiness asks Postgres at most once a second, whoever asks, waits at most
two seconds, and uses connections that requests cannot take.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.clock import Clock
from app.db.migrate import SchemaStatus
from app.errors import NexusError
from app.metrics import Metrics

DATABASE_CHECK_S = 2.0
CACHE_US = 1_000_000

_log = structlog.get_logger("nexuskv.health")


class PolicyFacts(NamedTuple):
    """Which policy is in force, whether the database's has been read, and what is wrong with it."""

    label: str
    loaded: bool
    fault: str | None


@dataclass(frozen=True, slots=True)
class ReadinessFacts:
    """What readiness asks of the parts. All but `schema_status` answer at once, from memory.

    `schema_status` must use a `Database` of its own (one connection is enough), so that a pool
    that requests have exhausted does not look like an outage.
    """

    schema_status: Callable[[], Awaitable[SchemaStatus]]
    keys_loaded: Callable[[], bool]
    index_loaded: Callable[[], bool]
    policy: Callable[[], PolicyFacts]
    decisions_alive: Callable[[], bool]
    draining: Callable[[], bool]
    implementation: str


CheckName = Literal["database", "keys", "index", "policy", "decisions", "serving"]


class Check(BaseModel):
    """One thing readiness depends on."""

    name: CheckName
    ok: bool
    detail: str


class Readiness(BaseModel):
    """Whether this replica may get traffic, and which check says no."""

    status: Literal["ready", "unready"]
    implementation: str = Field(description="`compiled`, or `reference` for the plain-Python one.")
    checks: list[Check]


class Liveness(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class ReadinessProbe:
    """Answers `/readyz`; the database part is shared by all who ask within a second."""

    def __init__(self, facts: ReadinessFacts, clock: Clock, metrics: Metrics) -> None:
        self._facts = facts
        self._clock = clock
        self._metrics = metrics
        self._database: Check | None = None
        self._checked_us = 0
        self._checking = asyncio.Lock()

    async def check(self) -> Readiness:
        """Run every check; never raises and never takes much longer than two seconds."""
        facts = self._facts
        checks = [
            await self._database_check(),
            _check("keys", facts.keys_loaded(), "loaded", "the API keys are not loaded yet"),
            _check("index", facts.index_loaded(), "loaded", "the states are not loaded yet"),
            _policy_check(facts.policy()),
            _check(
                "decisions",
                facts.decisions_alive(),
                "recording",
                "the decision writer has stopped",
            ),
            _check("serving", not facts.draining(), "serving", "the process is shutting down"),
        ]
        return Readiness(
            status="ready" if all(check.ok for check in checks) else "unready",
            implementation=facts.implementation,
            checks=checks,
        )

    async def _database_check(self) -> Check:
        async with self._checking:
            now_us = self._clock.monotonic_us()
            if self._database is None or now_us - self._checked_us >= CACHE_US:
                self._database = await self._ask_database()
                self._checked_us = self._clock.monotonic_us()
            return self._database

    async def _ask_database(self) -> Check:
        try:
            async with asyncio.timeout(DATABASE_CHECK_S):
                status = await self._facts.schema_status()
        except (NexusError, TimeoutError):
            self._metrics.set_database_up(up=False)
            return Check(name="database", ok=False, detail="Postgres does not answer")
        except Exception:  # noqa: BLE001 - whatever is wrong, the answer is "not ready"
            _log.exception("schema_check_failed")
            self._metrics.set_database_up(up=False)
            return Check(name="database", ok=False, detail="the schema cannot be read")
        self._metrics.set_database_up(up=True)
        found = status.current or "none"
        return _check(
            "database",
            status.state == "current",
            f"schema {found}",
            f"the schema is {status.state}: found {found}, need {status.head}",
        )


def health_router(probe: ReadinessProbe, metrics: Metrics) -> APIRouter:
    """The three routes operators use; they need no key and name no tenant."""
    router = APIRouter(tags=["operations"])

    @router.get("/livez", summary="Is the process alive?")
    async def livez() -> Liveness:
        return Liveness(status="ok")

    @router.get(
        "/readyz",
        summary="May this replica get traffic?",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "Not ready; `checks` says why."}},
    )
    async def readyz() -> Response:
        readiness = await probe.check()
        return Response(
            readiness.model_dump_json(),
            status_code=200 if readiness.status == "ready" else 503,
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )

    @router.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={
            200: {
                "description": "Prometheus text, or OpenMetrics for who accepts it.",
                "content": {
                    "text/plain": {"schema": {"type": "string"}},
                    "application/openmetrics-text": {"schema": {"type": "string"}},
                },
            }
        },
    )
    async def scrape(request: Request) -> Response:
        content_type, text = metrics.render(request.headers.get("accept"))
        return Response(text, headers={"content-type": content_type})

    return router


def _policy_check(policy: PolicyFacts) -> Check:
    """A policy that cannot be read leaves the last good one in force: said, and no reason to go."""
    in_force = f"{policy.label} is in force"
    fault = "" if policy.fault is None else f"; the latest activation is not: {policy.fault}"
    return _check("policy", policy.loaded, in_force + fault, "the policy is not loaded yet")


def _check(
    name: CheckName,
    ok: bool,
    detail: str,
    trouble: str,
) -> Check:
    return Check(name=name, ok=ok, detail=detail if ok else trouble)
