"""An option is consumed once, whoever dies, comes late or is refused on the way."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from app.clock import SystemClock, SystemIds
from app.contract.enums import ActionStatus, Disposition, FallbackReason
from app.contract.execution import BackendActionResult
from app.execution.backend import Carried, ProtocolBackend
from app.execution.claims import ClaimRequest
from app.execution.repository import (
    claim_consume,
    claim_find,
    claim_release,
    claim_take,
    claims_forget,
)
from app.lifecycle.materialize import Materialize
from app.lifecycle.observe import Observer
from app.lifecycle.steps import Steps
from tests.fixtures.wire import error_code

CLAIM_S = 10.0
CLAIM = text(
    "INSERT INTO option_claim (option_id, tenant, import_id, sink_namespace, sink_value, status,"
    " fence, claimed_at, claim_expires_at) VALUES (:option_id, 't', :import_id,"
    " 'locus.fake.engine-sink.v1', 'sink-1', 'claimed', 1, :at, :expires_at)"
)


def request(option_id, now, *, fence, import_id="import-1"):
    return ClaimRequest(
        option_id=option_id,
        tenant="t",
        import_id=import_id,
        sink_namespace="sinks",
        sink_value="sink-1",
        fence=fence,
        decision_id=SystemIds().uuid7(),
        now=now,
        expires_at=now + timedelta(seconds=CLAIM_S),
    )


async def claim_of_another(process, option, *, import_id="import-other", age_s=0.0):
    """What a replica leaves that claimed `age_s` ago and has not come back since."""
    at = process.clock.now() - timedelta(seconds=age_s)
    values = {"option_id": UUID(option["option_id"][4:]).bytes, "import_id": import_id, "at": at}
    async with process.services.database.write() as session:
        await session.execute(CLAIM, values | {"expires_at": at + timedelta(seconds=CLAIM_S)})


async def test_the_claim_of_a_dead_owner_is_taken_over(process):
    await process.register("t")
    option = await process.option("t")
    await claim_of_another(process, option, age_s=CLAIM_S + 1)
    assert (await process.materialize(option)).status_code == 200
    again = await process.materialize(option, import_id="import-other")
    assert error_code(again) == (409, "materialization_option_consumed")


async def test_an_open_claim_makes_others_wait_and_then_lets_them(process):
    await process.register("t")
    option = await process.option("t")
    await claim_of_another(process, option)
    busy = await process.materialize(option)
    assert error_code(busy) == (503, "materialization_unavailable")
    assert busy.headers["retry-after"]
    process.clock.advance(CLAIM_S + 0.1)
    assert (await process.materialize(option)).status_code == 200
    outcomes = [item["outcome"] for item in await process.decisions(kind="materialize")]
    assert outcomes == ["acknowledged", "unavailable"]


async def test_the_same_import_with_another_sink_is_a_mismatch_while_it_is_claimed(process):
    await process.register("t")
    option = await process.option("t")
    await claim_of_another(process, option, import_id="import-1")
    assert error_code(await process.materialize(option)) == (503, "materialization_unavailable")
    for changes in ({"sink_value": "sink-2"}, {"sink_namespace": "other"}):
        answer = await process.materialize(option, **changes)
        assert error_code(answer) == (409, "materialization_option_mismatch"), changes


async def test_a_late_consume_is_fenced(database):
    clock, option_id = SystemClock(), SystemIds().uuid7()
    first = request(option_id, clock.now(), fence=1)
    second = request(option_id, first.expires_at, fence=2, import_id="import-2")
    async with database.write() as session:
        assert await claim_take(session, first)
        # Neither the same attempt nor another one takes what is held.
        assert not await claim_take(session, first)
        early = request(option_id, first.now, fence=3)
        assert not await claim_take(session, early)
    async with database.write() as session:
        assert await claim_take(session, second)
    async with database.write() as session:
        assert not await claim_consume(session, option_id, 1, clock.now(), "{}")
        await claim_release(session, option_id, 1)
    async with database.write() as session:
        held = await claim_find(session, option_id)
        assert (held.import_id, held.consumed) == ("import-2", False)
        assert await claim_consume(session, option_id, 2, clock.now(), '{"a": 1}')
        # Consumed is for good.
        assert not await claim_consume(session, option_id, 2, clock.now(), "{}")
        await claim_release(session, option_id, 2)
        assert not await claim_take(session, request(option_id, second.expires_at, fence=4))
        found = await claim_find(session, option_id)
    assert (found.consumed, found.receipt) == (True, '{"a": 1}')


async def test_old_claims_are_forgotten_in_batches(database):
    now = SystemClock().now()
    for age_days in (9, 8, 1):
        async with database.write() as session:
            claim = request(SystemIds().uuid7(), now - timedelta(days=age_days), fence=1)
            assert await claim_take(session, claim)
    forgotten = []
    for _ in range(3):
        async with database.write() as session:
            forgotten.append(await claims_forget(session, now - timedelta(days=7), 1))
    assert forgotten == [1, 1, 0]


class Refusing:
    """A backend that executes nothing, and says so as backends do."""

    name = "refusing"

    def __init__(self, status, executed_kind):
        self._status = status
        self._executed_kind = executed_kind
        self.calls = 0

    async def materialize(self, order):
        self.calls += 1
        result = BackendActionResult(
            requested_kind=Disposition.MATERIALIZE,
            executed_kind=self._executed_kind,
            status=self._status,
            final_disposition=Disposition.RECOMPUTE,
            backend_name=self.name,
            source=order.source.location,
            target=order.target,
            degraded=False,
            fallback_reason=FallbackReason.NO_TRANSFER_PATH,
            detail="secret detail",
        )
        return Carried(result)


class Raising(Refusing):
    """A backend with a bug."""

    async def materialize(self, order):
        self.calls += 1
        raise RuntimeError("a bug")


def with_backend(process, backend):
    """The slice with another backend, put in the place of the service's own."""
    services = process.services
    observer = Observer(
        services.spool,
        services.policy_provider,
        services.index,
        services.costs,
        clock=process.clock,
        ids=services.ids,
    )
    workers = replace(services.materialize._workers, protocol=backend)
    process.app.bridge._materialize = Materialize(
        services.database,
        observer,
        workers,
        Steps(),
        clock=process.clock,
        claim_ttl_s=CLAIM_S,
    )


@pytest.mark.parametrize(
    ("status", "executed"),
    [
        (ActionStatus.FALLBACK, Disposition.RECOMPUTE),
        (ActionStatus.REJECTED, Disposition.MATERIALIZE),
        (ActionStatus.SUCCEEDED, Disposition.RECOMPUTE),
        (ActionStatus.SKIPPED, Disposition.SKIP),
    ],
)
async def test_an_execution_that_did_not_happen_gives_the_option_back(process, status, executed):
    await process.register("t")
    option = await process.option("t")
    backend = Refusing(status, executed)
    with_backend(process, backend)
    answer = await process.materialize(option)
    assert error_code(answer) == (503, "materialization_unavailable")
    assert "secret" not in answer.text
    assert backend.calls == 1
    with_backend(process, process.services.materialize._workers.protocol)
    # Another import, too: nothing was consumed.
    assert (await process.materialize(option, import_id="import-2")).status_code == 200
    last, refused = await process.decisions(kind="materialize")
    assert (refused["outcome"], refused["fallback_reason"]) == (
        "unavailable",
        "no_transfer_path",
    )
    assert last["outcome"] == "acknowledged"
    detail = await process.client.get(f"/v1/decisions/{last['decision_id']}")
    statuses = [outcome["status"] for outcome in detail.json()["outcomes"]]
    assert statuses == ["fell_back", "registered"]


async def test_a_backend_with_a_bug_gives_the_option_back_too(process):
    await process.register("t")
    option = await process.option("t")
    with_backend(process, Raising(ActionStatus.REJECTED, Disposition.SKIP))
    assert error_code(await process.materialize(option)) == (500, "internal_error")
    with_backend(process, process.services.materialize._workers.protocol)
    assert (await process.materialize(option)).status_code == 200


class Cutting(ProtocolBackend):
    """Executes, and loses the database before the receipt can be stored."""

    def __init__(self, gate):
        self._gate = gate

    async def materialize(self, order):
        result = await super().materialize(order)
        self._gate.close()
        return result


async def test_an_execution_whose_receipt_was_not_stored_is_not_reported(gated, gate):
    await gated.register("t")
    option = await gated.option("t")
    with_backend(gated, Cutting(gate))
    assert error_code(await gated.materialize(option)) == (503, "materialization_unavailable")
    gate.open()
    with_backend(gated, gated.services.materialize._workers.protocol)
    # Its claim stands until it expires; nobody knows that it was this process's.
    assert error_code(await gated.materialize(option)) == (503, "materialization_unavailable")
    gated.clock.advance(CLAIM_S + 1)
    assert (await gated.materialize(option)).status_code == 200
    outcomes = [item["outcome"] for item in await gated.decisions(kind="materialize")]
    assert outcomes == ["acknowledged", "unavailable", "unavailable"]
