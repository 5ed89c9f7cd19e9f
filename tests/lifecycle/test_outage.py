"""Postgres goes away while requests come in, and comes back: nothing decided is lost."""

import asyncio
import socket

import httpx
import pytest

from tests.fixtures.service import START_DEADLINE_S, ServiceProcess
from tests.fixtures.wire import error_code, lookup_body, registration
from tests.lifecycle.gate import Gate
from tests.lifecycle.in_process import running

UNAVAILABLE = (503, "materialization_unavailable")


async def test_postgres_goes_and_comes_back(gated, gate):
    created = await gated.register("t")
    handle, option = await gated.handle("t"), await gated.option("t")
    gate.close()
    for _ in range(20):
        answer = await gated.lookup("t")
        assert answer.json()["match_result"] is not None
    assert error_code(await gated.estimate(handle)) == UNAVAILABLE
    assert error_code(await gated.materialize(option)) == UNAVAILABLE
    state = f"/v1/states/{created['state_id']}"
    for method, path in (("GET", "/v1/states"), ("GET", state), ("DELETE", state)):
        refused = await gated.client.request(method, path)
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
        assert refused.json()["retryable"] is True
        assert refused.headers["retry-after"]
        assert "127.0.0.1" not in refused.text
    gated.clock.advance(2)
    assert (await gated.client.get("/livez")).status_code == 200
    assert (await gated.client.get("/readyz")).status_code == 503

    gate.open()
    gated.clock.advance(2)
    # The first request already finds a new connection, and the option is not used up.
    assert (await gated.estimate(handle)).status_code == 200
    assert (await gated.materialize(option)).status_code == 200
    assert (await gated.client.get("/readyz")).status_code == 200
    history = await gated.decisions()
    outcomes = [(item["kind"], item["outcome"]) for item in history]
    assert sorted(outcomes) == sorted(
        [("lookup", "hit")] * 22
        + [("estimate", "estimated")] * 2
        + [("estimate", "unavailable"), ("materialize", "unavailable")]
        + [("materialize", "acknowledged")]
    )
    assert gated.services.spool.lost_rows == 0


async def test_a_registration_during_an_outage_can_be_repeated(gated, gate):
    gate.close()
    body = {"entries": [registration("t")]}
    refused = await gated.post("/v1/states", body)
    assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")
    # Nothing is found that is not stored.
    assert (await gated.lookup("t")).json()["match_result"] is None
    # A bad body is bad whether Postgres is there or not.
    assert (await gated.post("/v1/states", {"entries": [1]})).status_code == 400
    gate.open()
    stored = await gated.post("/v1/states", body)
    assert stored.status_code == 201


async def test_a_postgres_that_stops_answering_delays_nothing_but_what_needs_it(database_url, gate):
    async with running(
        database_url, served_url=gate.url, statement_timeout_s=0.2, drain_s=1.0
    ) as process:
        await process.register("t")
        handle = await process.handle("t")
        gate.stall()
        waiting = asyncio.create_task(process.estimate(handle))
        async with asyncio.timeout(1):
            for _ in range(20):
                hit = await process.lookup("t")
                assert hit.json()["match_result"] is not None
        assert not waiting.done()
        async with asyncio.timeout(15):
            assert error_code(await waiting) == UNAVAILABLE
        gate.open()
        assert (await process.estimate(handle)).status_code == 200
        assert len(await process.decisions(outcome="hit")) == 21


async def test_a_connection_that_is_cut_in_the_middle_of_an_answer(gated, gate):
    await gated.register("t")
    handle, option = await gated.handle("t"), await gated.option("t")
    gate.stall()
    waiting = [
        asyncio.create_task(request)
        for request in (
            gated.estimate(handle),
            gated.materialize(option),
            gated.post("/v1/states", {"entries": [registration("t", "other")]}),
            gated.client.get("/v1/states"),
        )
    ]
    await gate.reached(len(waiting))
    gate.close()
    answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [503] * 4, [a.text for a in answers]
    gate.open()
    assert (await gated.materialize(option)).status_code == 200
    assert (await gated.register("t", "other"))["status"] in (200, 201)


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


async def answers(client):
    """Returns once the process listens."""
    async with asyncio.timeout(START_DEADLINE_S):
        while True:
            try:
                await client.get("/healthz")
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_postgres_away_at_the_start(database_url, tmp_path, free_port):
    async with Gate(database_url) as gate:
        gate.close()
        service = await asyncio.to_thread(
            ServiceProcess,
            database_url,
            tmp_path,
            "--listen",
            f"127.0.0.1:{free_port}",
            NEXUSKV_DATABASE_URL=gate.url,
        )
        service.url = f"http://127.0.0.1:{free_port}"
        starting = asyncio.create_task(asyncio.to_thread(service.start))
        try:
            headers = {"authorization": f"Bearer {service.admin_key}"}
            async with httpx.AsyncClient(base_url=service.url, headers=headers) as client:
                await answers(client)
                assert (await client.get("/livez")).status_code == 200
                unready = await client.get("/readyz")
                assert unready.status_code == 503
                failing = {c["name"] for c in unready.json()["checks"] if not c["ok"]}
                assert {"database", "keys", "index"} <= failing
                answer = await client.post("/locus/v1/lookup", json=lookup_body("t"))
                assert error_code(answer) == UNAVAILABLE
                assert (await client.get("/v1/states")).status_code == 503
                assert not starting.done()
                gate.open()
                await starting
                answer = await client.post("/locus/v1/lookup", json=lookup_body("t"))
                assert answer.status_code == 200
                assert answer.json()["match_result"] is None
                assert "x-nexuskv-match" not in answer.headers
            assert await asyncio.to_thread(service.stop) == 0, service.log()
        finally:
            if service.process is not None and service.process.poll() is None:
                service.kill()
