"""Request ids, traces and the access log, as a client and an operator see them."""

import json

import httpx
import pytest
import structlog
from fastapi import APIRouter, FastAPI, Request
from starlette.requests import ClientDisconnect

from app.clock import SystemClock, SystemIds
from app.metrics import Metrics
from app.problem import install_handlers, request_id_in
from app.request_context import (
    TRACE_KEY,
    RequestContextMiddleware,
    own_span,
    request_id_of,
    trace_of,
)

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-00"


def build(metrics: Metrics) -> RequestContextMiddleware:
    app = FastAPI()
    install_handlers(app)
    inner = APIRouter(prefix="/things")
    log = structlog.get_logger("test")

    @inner.get("/{thing_id}")
    async def thing(thing_id: str, request: Request) -> dict[str, str]:
        log.info("inside")
        return {
            "request_id": request_id_in(request.scope),
            "trace_id": request.scope[TRACE_KEY].trace_id,
        }

    outer = APIRouter(prefix="/v1")
    outer.include_router(inner)
    app.include_router(outer)

    @app.get("/livez")
    async def livez() -> None:
        return None

    @app.get("/gone")
    async def gone() -> None:
        raise ClientDisconnect

    return RequestContextMiddleware(app, clock=SystemClock(), ids=SystemIds(), metrics=metrics)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="0", implementation="reference")


@pytest.fixture
async def client(metrics, log_stream):
    transport = httpx.ASGITransport(app=build(metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        yield client


def lines(log_stream) -> list[dict]:
    return [json.loads(line) for line in log_stream.getvalue().splitlines()]


async def test_the_callers_ids_are_used_and_returned(client) -> None:
    response = await client.get(
        "/v1/things/7", headers={"x-request-id": "abc-1._Z", "traceparent": PARENT}
    )
    assert response.json() == {"request_id": "abc-1._Z", "trace_id": TRACE_ID}
    assert response.headers["x-request-id"] == "abc-1._Z"
    version, trace_id, span_id, flags = response.headers["traceparent"].split("-")
    assert (version, trace_id, flags) == ("00", TRACE_ID, "00")
    assert span_id != "b7ad6b7169203331"


async def test_without_ids_new_ones_are_made(client) -> None:
    first = await client.get("/v1/things/7")
    second = await client.get("/v1/things/7")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    traces = [trace_of([(b"traceparent", r.headers["traceparent"].encode())])
              for r in (first, second)]  # fmt: skip
    assert None not in traces
    assert traces[0].trace_id != traces[1].trace_id
    assert traces[0].flags == "01"


@pytest.mark.parametrize("sent", ["", "a b", "x" * 65, "ä", "a\x01", "{}", "a/b"])
async def test_an_id_we_would_not_log_is_replaced(client, sent: str) -> None:
    response = await client.get("/v1/things/7", headers={"x-request-id": sent.encode()})
    assert response.headers["x-request-id"] != sent
    assert len(response.headers["x-request-id"]) == 36


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"garbage",
        PARENT.upper().encode(),
        f"00-{'0' * 32}-b7ad6b7169203331-00".encode(),
        f"00-{TRACE_ID}-{'0' * 16}-00".encode(),
        f"ff-{TRACE_ID}-b7ad6b7169203331-00".encode(),
        f"{PARENT}-extra".encode(),
        f"{PARENT}\n".encode(),
        PARENT[:-1].encode(),
    ],
)
def test_an_invalid_traceparent_is_none(value: bytes) -> None:
    assert trace_of([(b"traceparent", value)]) is None


def test_two_traceparents_are_none_and_a_later_version_is_read() -> None:
    header = (b"traceparent", PARENT.encode())
    assert trace_of([header, header]) is None
    later = trace_of([(b"traceparent", f"01-{TRACE_ID}-b7ad6b7169203331-01-more".encode())])
    assert later is not None
    assert later.trace_id == TRACE_ID
    assert later.flags == "01"
    assert trace_of([]) is None
    assert request_id_of([(b"host", b"x")]) is None


def test_spans_are_never_zero_and_never_repeat() -> None:
    ids = SystemIds()
    spans = {own_span(None, ids).span_id for _ in range(1000)}
    assert len(spans) == 1000
    assert all(len(span) == 16 and int(span, 16) for span in spans)


async def test_one_line_a_request_without_query_or_credentials(client, log_stream) -> None:
    await client.get(
        "/v1/things/secret-id?token=hunter2",
        headers={
            "authorization": "Bearer hunter3",
            "x-request-id": "r-1",
            "traceparent": PARENT,
        },
    )
    text = log_stream.getvalue()
    inside, access = (json.loads(line) for line in text.splitlines())
    assert inside["event"] == "inside"
    assert inside["request_id"] == access["request_id"] == "r-1"
    assert inside["trace_id"] == access["trace_id"] == TRACE_ID
    assert access["path"] == "/v1/things/{thing_id}"
    assert access["method"] == "GET"
    assert access["status"] == 200
    assert access["duration_us"] >= 0
    assert "hunter" not in text
    assert "secret-id" not in text


async def test_probes_do_not_fill_the_log_and_ids_do_not_leak_into_the_next(
    client, log_stream
) -> None:
    await client.get("/livez", headers={"x-request-id": "r-1"})
    structlog.get_logger("test").info("outside")
    (outside,) = lines(log_stream)
    assert outside["event"] == "outside"
    assert "request_id" not in outside


async def test_unknown_paths_share_one_label(client, metrics) -> None:
    for path in ("/a", "/b", "/v1/things/1/2"):
        assert (await client.get(path)).status_code == 404
    await client.get("/v1/things/1")
    text = metrics.render()[1].decode()
    assert 'nexuskv_http_requests_total{method="GET",route="unmatched",status="4xx"} 3.0' in text
    assert (
        'nexuskv_http_requests_total{method="GET",route="/v1/things/{thing_id}",status="2xx"} 1.0'
        in text
    )


async def test_a_client_that_left_is_no_error(metrics, log_stream) -> None:
    sent = []

    async def app(scope, receive, send):
        raise ClientDisconnect

    middleware = RequestContextMiddleware(
        app, clock=SystemClock(), ids=SystemIds(), metrics=metrics
    )
    scope = {"type": "http", "method": "GET", "path": "/gone", "headers": []}

    async def send(message):
        sent.append(message)

    await middleware(scope, None, send)
    assert sent == []
    (line,) = lines(log_stream)
    assert (line["event"], line["status"], line["level"]) == ("request", 499, "info")
    assert 'status="4xx"' in metrics.render()[1].decode()


async def test_half_an_answer_is_left_to_the_server(metrics) -> None:
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("late")

    async def send(message):
        pass

    middleware = RequestContextMiddleware(
        app, clock=SystemClock(), ids=SystemIds(), metrics=metrics
    )
    with pytest.raises(RuntimeError, match="late"):
        await middleware({"type": "http", "method": "GET", "path": "/", "headers": []}, None, send)
