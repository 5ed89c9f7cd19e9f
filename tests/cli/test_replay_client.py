"""The client against a server that answers by script, over real sockets."""

import asyncio
import contextlib
from collections import deque

import httpx
import msgspec
import pytest

from app.cli.replay_client import ATTEMPTS, ReplayClient, ReplayError
from app.clock import SystemClock

DROP = object()


class ScriptedServer:
    """Answers the n-th request with the n-th item: (status, headers, document) or DROP."""

    def __init__(self, *script):
        self._script = deque(script)
        self.requests: list[bytes] = []

    async def serve(self, reader, writer):
        with contextlib.closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head.split(b"\r\n")[0])
            answer = self._script.popleft()
            if answer is DROP:
                return
            status, headers, document = answer
            body = document if isinstance(document, bytes) else msgspec.json.encode(document)
            lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body)}"]
            lines += ["connection: close", *(f"{k}: {v}" for k, v in headers.items())]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            await writer.drain()


@contextlib.asynccontextmanager
async def client_of(server):
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        yield ReplayClient(http, SystemClock())


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch):
    monkeypatch.setattr("app.cli.replay_client.FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr("app.cli.replay_client.POLL_S", 0.001)


def refusal(status, code):
    return (status, {}, {"schema_version": "v", "error": {"code": code, "message": "why"}})


async def test_a_dropped_connection_and_a_503_are_tried_again():
    ok = (200, {"X-NexusKV-Decision-Id": "d-1"}, {"fine": True})
    server = ScriptedServer(DROP, refusal(503, "materialization_unavailable"), ok)
    async with client_of(server) as client:
        answer = await client.post("/locus/v1/lookup", b"{}")
    assert answer.decision_id == "d-1"
    assert msgspec.json.decode(answer.body) == {"fine": True}
    assert server.requests == [b"POST /locus/v1/lookup HTTP/1.1"] * 3


async def test_retries_are_bounded():
    server = ScriptedServer(*[refusal(503, "materialization_unavailable")] * 20)
    async with client_of(server) as client:
        with pytest.raises(ReplayError) as caught:
            await client.post("/locus/v1/lookup", b"{}")
    assert caught.value.code == "materialization_unavailable"
    assert not caught.value.fatal
    assert len(server.requests) == ATTEMPTS


async def test_a_service_that_stays_away_ends_the_run():
    server = ScriptedServer(*[DROP] * ATTEMPTS)
    async with client_of(server) as client:
        with pytest.raises(ReplayError, match="no answer from") as caught:
            await client.post("/locus/v1/lookup", b"{}")
    assert caught.value.fatal


@pytest.mark.parametrize(
    ("answer", "code", "message", "fatal"),
    [
        (refusal(409, "source_handle_mismatch"), "source_handle_mismatch", "/p: why", False),
        (refusal(401, "unauthorized"), "unauthorized", "/p: why", True),
        (refusal(403, "tenant_forbidden"), "tenant_forbidden", "/p: why", True),
        ((400, {}, {"code": "invalid_field", "detail": "d"}), "invalid_field", "/p: d", False),
        ((404, {}, b"<html>"), "http_404", "/p: Scripted", False),
        ((307, {"location": "/"}, b""), "http_307", "/p: Scripted", False),
    ],
)
async def test_a_refusal_is_reported_once_with_code_and_message(answer, code, message, fatal):
    server = ScriptedServer(answer)
    async with client_of(server) as client:
        with pytest.raises(ReplayError) as caught:
            await client.post("/p", b"{}")
    assert (caught.value.code, caught.value.message) == (code, message)
    assert caught.value.fatal is fatal
    assert len(server.requests) == 1


async def test_an_answer_of_another_service_is_named_so():
    async with client_of(ScriptedServer((200, {}, b"hello"))) as client:
        with pytest.raises(ReplayError, match="not a NexusKV answer") as caught:
            await client.register(b"{}")
    assert caught.value.code == "invalid_answer"


def page(*ids, cursor=None):
    document = {"items": [{"decision_id": i, "kind": "lookup"} for i in ids]}
    return (200, {}, {**document, "next_cursor": cursor})


async def test_decisions_are_counted_over_pages_and_foreign_ones_ignored():
    server = ScriptedServer(page("9", "8", cursor="c"), page("7", "5"))
    async with client_of(server) as client:
        found = await client.count_recorded({"7", "8"}, filters={"model": "m"}, deadline_s=0)
    assert found == 2
    assert server.requests == [
        b"GET /v1/decisions?model=m&page_size=1000 HTTP/1.1",
        b"GET /v1/decisions?model=m&page_size=1000&cursor=c HTTP/1.1",
    ]


async def test_counting_polls_until_the_last_decision_is_listed():
    server = ScriptedServer(page("7"), page("7"), page("8", "7"))
    async with client_of(server) as client:
        found = await client.count_recorded({"7", "8"}, filters={}, deadline_s=60)
    assert found == 2
    assert len(server.requests) == 3


async def test_counting_gives_up_at_the_deadline_and_stops_at_older_pages():
    server = ScriptedServer(page("9", "8", cursor="c"), page("6", "5", cursor="d"))
    async with client_of(server) as client:
        found = await client.count_recorded({"7", "8"}, filters={}, deadline_s=0)
    assert found == 1
    assert len(server.requests) == 2
