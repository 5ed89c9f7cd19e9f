"""The client of workers against servers that answer by script, over real sockets."""

import asyncio
import contextlib
import socket
from contextlib import suppress

import pytest

from app.contract.enums import TransferStatus
from app.transfer.client import OPERATIONS, WorkerCallError, WorkerFault
from app.transfer.lane import LaneLimits
from app.transfer.tokens import Direction, Grant
from app.transfer.wire import SinkState, TransferFailure, TransferSource
from tests.transfer.scripted_worker import (
    CHECKSUM,
    TENANT,
    ScriptedWorker,
    client_of,
    completes,
    document,
    facts_of,
    hangs,
    hangs_up,
    order,
    response,
    says,
)

DEADLINE_S = 5.0


async def transfer(client, worker="node-a", session_id="session-1", deadline_s=DEADLINE_S, **more):
    return await client.transfer(
        worker, order(session_id, **more), tenant=TENANT, deadline_s=deadline_s
    )


async def fault_of(call) -> WorkerFault:
    with pytest.raises(WorkerCallError) as caught:
        await call
    assert caught.value.detail
    return caught.value.kind


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_transfer_carries_what_the_destination_needs_and_returns_its_facts():
    here, there = ScriptedWorker(completes), ScriptedWorker(completes, name="node-b")
    there.data_address = "127.0.0.1:7001"
    async with client_of(here, there) as client:
        facts = await transfer(client)
    assert (facts.status, facts.bytes_transferred) == (TransferStatus.COMPLETED, 4096)
    assert facts.checksum == CHECKSUM
    [asked] = here.asked
    assert (asked.method, asked.path) == ("POST", "/v1/transfers")
    assert asked.grant() == Grant("node-a", TENANT, Direction.TRANSFER, "payload-1", "sink-1")
    sent = asked.json()
    assert sent["source"]["data_address"] == "127.0.0.1:7001"
    fetch = here.asked[0]
    fetch.headers["authorization"] = f"Bearer {sent['source']['token']}"
    assert fetch.grant("node-b") == Grant(
        "node-b",
        TENANT,
        Direction.FETCH,
        "payload-1",
        "sink-1",
        target_worker="node-a",
        data_address="127.0.0.1:7001",
    )
    # The worker gives up first, then says so, and then we do.
    assert 0 < sent["deadline_s"] < sent["wait_s"] < DEADLINE_S
    assert client.calls["transfer", "ok"] == 1


async def test_a_source_on_the_same_worker_needs_no_address_and_no_token():
    here = ScriptedWorker(completes)
    async with client_of(here) as client:
        await transfer(
            client, source=TransferSource("node-a", "payload-1"), target_payload_id="copy-1"
        )
    assert here.asked[0].json()["source"] | {"checksum": None} == {
        "worker": "node-a",
        "payload_id": "payload-1",
        "data_address": None,
        "token": None,
        "checksum": None,
        "payload_bytes": None,
    }
    assert here.asked[0].grant().sink_id == ""


async def test_a_failed_transfer_is_an_answer_and_no_fault():
    async def fails(asked, writer):
        facts = {"status": "failed", "failure": "no_space", "checksum": None}
        writer.write(document(200, facts_of(asked, **facts, bytes_transferred=0)))

    async with client_of(ScriptedWorker(fails), ScriptedWorker(fails, name="node-b")) as client:
        facts = await transfer(client)
    assert (facts.status, facts.failure) == (TransferStatus.FAILED, TransferFailure.NO_SPACE)


PROBLEM = {"code": "transfer_conflict", "detail": "another order", "status": 409}
REDIRECT = response(307, b"", "location: http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (document(409, PROBLEM), WorkerFault.REFUSED),
        (document(404, PROBLEM), WorkerFault.REFUSED),
        (response(500, b"\xff" * 100), WorkerFault.REFUSED),
        (document(401, PROBLEM), WorkerFault.UNAUTHORIZED),
        (document(403, PROBLEM), WorkerFault.UNAUTHORIZED),
        (document(503, PROBLEM), WorkerFault.OVERLOADED),
        (document(429, PROBLEM), WorkerFault.OVERLOADED),
        (REDIRECT, WorkerFault.GARBAGE),
        (response(200, b""), WorkerFault.GARBAGE),
        (response(200, b"{" * 60_000), WorkerFault.GARBAGE),
        (response(200, b"[" * 60_000), WorkerFault.GARBAGE),
        (response(200, b'{"session_id": "\xff"}'), WorkerFault.GARBAGE),
        (response(200, b" " * 70_000), WorkerFault.GARBAGE),
        (response(200, b"\x1f\x8b\x08", "content-encoding: gzip"), WorkerFault.GARBAGE),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", WorkerFault.GARBAGE),
        (b"HTTP/1.1 200 \xff\r\ncontent-length: 2\r\n\r\n{}", WorkerFault.GARBAGE),
        (b"HTTP/1.1 103 E\r\n\r\n" * 10_000, WorkerFault.GARBAGE),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", WorkerFault.GARBAGE),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + b"\r\n", WorkerFault.GARBAGE),
    ],
    ids=range(19),
)
async def test_what_is_no_answer_is_a_fault_with_a_kind(raw, kind):
    worker = ScriptedWorker(says(raw))
    async with client_of(worker, ScriptedWorker(hangs, name="node-b")) as client:
        assert await fault_of(transfer(client)) is kind
        assert client.calls["transfer", kind] == 1
        # The connection is not used again, whatever may still come over it.
        worker.answer = completes
        assert (await transfer(client)).status is TransferStatus.COMPLETED
    assert client.retried == 0


@pytest.mark.parametrize(
    "lie",
    [
        {"session_id": "session-2"},
        {"payload_id": "payload-2"},
        {"source_worker": "node-c"},
        {"target_sink_id": None},
        {"target_payload_id": "payload-1"},
        {"checksum": None},
        {"checksum": CHECKSUM.upper()},
        {"bytes_transferred": -1},
        {"bytes_transferred": 1.5},
        {"status": "done"},
    ],
    ids=str,
)
async def test_facts_that_do_not_fit_the_order_are_garbage(lie):
    async def lies(asked, writer):
        writer.write(document(200, facts_of(asked, **lie)))

    async with client_of(ScriptedWorker(lies), ScriptedWorker(lies, name="node-b")) as client:
        assert await fault_of(transfer(client)) is WorkerFault.GARBAGE


async def test_an_order_that_does_not_fit_the_protocol_is_not_sent():
    worker = ScriptedWorker(completes)
    async with client_of(worker, ScriptedWorker(completes, name="node-b")) as client:
        for session_id in ("", "../livez", "a b", "x" * 200):
            assert await fault_of(transfer(client, session_id=session_id)) is WorkerFault.REFUSED
        assert await fault_of(transfer(client, deadline_s=0)) is WorkerFault.TIMEOUT
    assert worker.asked == []


async def test_without_a_secret_or_a_known_worker_nothing_is_sent():
    worker = ScriptedWorker(completes)
    async with client_of(worker, ScriptedWorker(hangs, name="node-b"), keys=None) as client:
        assert await fault_of(transfer(client)) is WorkerFault.UNAUTHORIZED
    async with client_of(worker) as client:
        assert await fault_of(transfer(client, "node-x")) is WorkerFault.UNREACHABLE
        # The source is not known either.
        assert await fault_of(transfer(client)) is WorkerFault.UNREACHABLE
    assert worker.asked == []


async def test_a_broken_connection_is_tried_again_within_the_budget():
    tried = 0

    async def breaks_once(asked, writer):
        nonlocal tried
        tried += 1
        if tried == 1:
            writer.write(response(200, b"{}" * 100)[:-50])
            await writer.drain()
            raise EOFError
        if tried == 2:
            raise EOFError
        await completes(asked, writer)

    worker = ScriptedWorker(breaks_once)
    async with client_of(worker, ScriptedWorker(hangs, name="node-b")) as client:
        assert (await transfer(client)).status is TransferStatus.COMPLETED
        assert client.retried == 2
        # The same order to the last byte: the worker joins them.
        assert len({asked.body for asked in worker.asked}) == 1


async def test_an_outage_is_not_multiplied_by_retries():
    worker = ScriptedWorker(hangs_up)
    async with client_of(worker, ScriptedWorker(hangs, name="node-b")) as client:
        for number in range(100):
            kind = await fault_of(transfer(client, session_id=f"session-{number}"))
            assert kind is WorkerFault.UNREACHABLE
        # Five at first, and a tenth of the calls.
        assert len(worker.asked) <= 100 + 5 + 10
        assert client.retried == len(worker.asked) - 100 >= 5


async def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        worker = ScriptedWorker(completes, url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        async with client_of(worker, ScriptedWorker(hangs, name="node-b")) as client:
            assert await fault_of(transfer(client)) is WorkerFault.UNREACHABLE


async def test_a_worker_that_hangs_costs_the_deadline_and_is_told_to_stop():
    async def hangs_on_orders(asked, writer):
        if asked.method == "POST":
            await hangs(asked, writer)
        writer.write(document(200, {}))

    worker = ScriptedWorker(hangs_on_orders)
    async with client_of(worker, ScriptedWorker(hangs, name="node-b")) as client:
        assert await fault_of(transfer(client, deadline_s=0.1)) is WorkerFault.TIMEOUT
        await until(lambda: len(worker.asked) == 2)
        asked = worker.asked[1]
        assert (asked.method, asked.path) == ("DELETE", "/v1/transfers/session-1")
        assert asked.grant() == Grant("node-a", TENANT, Direction.TRANSFER, "payload-1", "sink-1")
        await until(lambda: client.calls["cancel", "ok"] == 1)


async def test_an_answer_that_drips_costs_the_deadline():
    async def drips(asked, writer):
        if asked.method == "DELETE":
            writer.write(document(200, {}))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.005)

    async with client_of(ScriptedWorker(drips), ScriptedWorker(drips, name="node-b")) as client:
        assert await fault_of(transfer(client, deadline_s=0.2)) is WorkerFault.TIMEOUT


async def fault_or_facts(call):
    """Whatever comes with the answer may break it."""
    with contextlib.suppress(WorkerCallError):
        await call


async def test_a_few_interim_answers_are_borne():
    async def hints(asked, writer):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 E\r\n\r\n" * 3)
        await completes(asked, writer)

    async with client_of(ScriptedWorker(hints), ScriptedWorker(hints, name="node-b")) as client:
        assert (await transfer(client)).bytes_transferred > 0


@pytest.mark.parametrize("more", [b"HTTP/1.1 404 N\r\ncontent-length: 2\r\n\r\n{}", b"x" * 64])
async def test_what_comes_unasked_ends_the_connection(more):
    ended = asyncio.Event()

    async def goes_on(asked, writer):
        await completes(asked, writer)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(more * 1_000)
                await writer.drain()
        ended.set()
        raise EOFError

    local = TransferSource("node-a", "payload-1")
    async with client_of(ScriptedWorker(goes_on)) as client:
        await fault_or_facts(transfer(client, source=local))
        async with asyncio.timeout(10):
            await ended.wait()
        await fault_or_facts(transfer(client, session_id="next", source=local))


async def test_a_caller_that_goes_away_cancels_its_transfer_at_the_worker():
    async def hangs_on_orders(asked, writer):
        if asked.method == "POST":
            await hangs(asked, writer)
        writer.write(document(200, {}))

    worker = ScriptedWorker(hangs_on_orders)
    async with client_of(worker, ScriptedWorker(hangs, name="node-b")) as client:
        call = asyncio.create_task(transfer(client))
        await until(lambda: worker.asked)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: len(worker.asked) == 2)
        assert worker.asked[1].path == "/v1/transfers/session-1"


async def test_stop_does_not_wait_for_a_cancellation_that_hangs(monkeypatch):
    monkeypatch.setattr("app.transfer.client._CANCEL_S", 0.1)
    worker = ScriptedWorker(hangs)
    async with client_of(worker, ScriptedWorker(hangs, name="node-b")) as client:
        assert await fault_of(transfer(client, deadline_s=0.05)) is WorkerFault.TIMEOUT
        async with asyncio.timeout(3):
            await client.stop()


async def test_one_worker_that_hangs_does_not_delay_calls_to_another():
    slow = ScriptedWorker(hangs)
    quick = ScriptedWorker(completes, name="node-b")
    local = TransferSource("node-b", "payload-1")
    async with client_of(slow, quick, in_flight=8, waiting=4, wait_s=0.5) as client:
        held = [asyncio.create_task(transfer(client, session_id=f"h-{n}")) for n in range(8)]
        await until(lambda: len(slow.asked) == 8)
        waiting = [asyncio.create_task(transfer(client, session_id=f"w-{n}")) for n in range(4)]
        await asyncio.sleep(0)
        # Slots and waiting room are full: the next is refused at once, others do not notice.
        async with asyncio.timeout(0.4):
            assert await fault_of(transfer(client, session_id="x")) is WorkerFault.OVERLOADED
        numbers = iter(range(100))

        async def one_by_one():
            for n in numbers:
                await transfer(client, "node-b", f"s-{n}", source=local)

        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(one_by_one() for _ in range(8)))
        assert len(quick.asked) == 100
        # Who waited is refused in time as well, and has never reached the worker.
        for task in waiting:
            assert await fault_of(task) is WorkerFault.OVERLOADED
        assert len(slow.asked) == 8
        # A cancellation has a place of its own.
        slow.answer = says(document(200, {}))
        await client.cancel("node-a", order("h-0"), tenant=TENANT)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_connections_are_reused_and_replaced_when_the_worker_has_closed_them():
    worker = ScriptedWorker(completes)
    local = TransferSource("node-a", "payload-1")
    async with client_of(worker) as client:
        for number in range(20):
            await transfer(client, session_id=f"s-{number}", source=local)
        assert worker.connections == 1

        async def completes_and_closes(asked, writer):
            await completes(asked, writer)
            await writer.drain()
            raise EOFError

        worker.answer = completes_and_closes
        # Each may meet the end of its connection, which takes of the budget.
        for number in range(LaneLimits().retry_burst):
            await transfer(client, session_id=f"c-{number}", source=local)
        assert worker.connections > 1


async def test_a_worker_at_another_url_is_called_there():
    first, second = ScriptedWorker(completes), ScriptedWorker(completes, name="node-b")
    local = TransferSource("node-a", "payload-1")
    async with client_of(first, second) as client:
        await transfer(client, source=local)
        first.url = second.url
        await transfer(client, source=local)
    assert (len(first.asked), len(second.asked)) == (1, 1)


SINK = {
    "sink_id": "sink-1",
    "tenant": TENANT,
    "payload_bytes": 4096,
    "engine_id": "engine-1",
    "engine_generation": 7,
    "state": "complete",
    "checksum": CHECKSUM,
}
PAYLOAD = {
    "payload_id": "payload-1",
    "tenant": TENANT,
    "payload_bytes": 4096,
    "checksum": CHECKSUM,
    "tier": "host_dram",
}


async def test_facts_of_sinks_and_payloads():
    worker = ScriptedWorker(says(document(200, SINK)))
    async with client_of(worker) as client:
        sink = await client.sink("node-a", "sink-1", tenant=TENANT)
        assert (sink.state, sink.engine_generation) == (SinkState.COMPLETE, 7)
        assert worker.asked[0].path == "/v1/sinks/sink-1"
        assert worker.asked[0].grant().direction is Direction.READ_SINK
        assert await fault_of(client.sink("node-a", "sink-2", tenant=TENANT)) is WorkerFault.GARBAGE
        assert await fault_of(client.sink("node-a", "sink-1", tenant="t2")) is WorkerFault.GARBAGE
        worker.answer = says(document(200, PAYLOAD))
        payload = await client.payload("node-a", "payload-1", tenant=TENANT)
        assert payload.payload_bytes == 4096
        assert worker.asked[-1].path == "/v1/payloads/payload-1/facts"
        assert await client.delete_payload("node-a", "payload-1", tenant=TENANT)
        assert worker.asked[-1].method == "DELETE"
        assert worker.asked[-1].grant().direction is Direction.DELETE_PAYLOAD


async def test_what_is_not_there_is_none_and_what_cannot_be_there_is_not_asked_for():
    worker = ScriptedWorker(says(document(404, PROBLEM)))
    async with client_of(worker) as client:
        assert await client.sink("node-a", "sink-1", tenant=TENANT) is None
        assert await client.payload("node-a", "payload-1", tenant=TENANT) is None
        assert not await client.delete_payload("node-a", "payload-1", tenant=TENANT)
        await client.cancel("node-a", order(), tenant=TENANT)
        asked = len(worker.asked)
        for hostile in ("", "..", "../payloads/p", "a/b", "a?b", "a%2fb", "é", "x" * 300, "a\n"):
            assert await client.sink("node-a", hostile, tenant=TENANT) is None
            assert await client.payload("node-a", hostile, tenant=TENANT) is None
            assert not await client.delete_payload("node-a", hostile, tenant=TENANT)
    assert len(worker.asked) == asked == 4


async def test_calls_are_counted_once_each_by_a_closed_set_of_results():
    worker = ScriptedWorker(says(document(200, SINK)))
    async with client_of(worker, ScriptedWorker(hangs, name="node-b")) as client:
        await client.sink("node-a", "sink-1", tenant=TENANT)
        for bad in (says(document(409, PROBLEM)), says(b"no\r\n\r\n"), hangs_up):
            worker.answer = bad
            with suppress(WorkerCallError):
                await client.sink("node-a", "sink-1", tenant=TENANT)
        counted = {key: count for key, count in client.calls.items() if count}
    assert counted == {
        ("sink", "ok"): 1,
        ("sink", "refused"): 1,
        ("sink", "garbage"): 1,
        ("sink", "unreachable"): 1,
    }
    assert set(client.calls) == {(o, r) for o in OPERATIONS for r in ("ok", *WorkerFault)}
