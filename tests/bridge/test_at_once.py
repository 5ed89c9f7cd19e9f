"""A lookup is answered whichever way its bytes arrive, and the same each time."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from app.control.keys import Scope
from tests.fixtures.service import ServiceProcess, decisions_of
from tests.fixtures.wire import lookup_body, new_tenant, registration

READ_S = 10


@contextmanager
def connection(service: ServiceProcess) -> Iterator[socket.socket]:
    parts = urlsplit(service.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=READ_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def request(key: str, body: bytes, *extra: str, version: str = "1.1") -> bytes:
    lines = [
        f"POST /locus/v1/lookup HTTP/{version}",
        "host: 127.0.0.1",
        f"authorization: Bearer {key}",
        f"content-length: {len(body)}",
        *extra,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_response(reader) -> tuple[int, dict[str, str], bytes]:
    status = int(reader.readline().split()[1])
    headers = {}
    while (line := reader.readline().strip()) != b"":
        name, _, value = line.decode().partition(": ")
        headers[name] = value
    return status, headers, reader.read(int(headers["content-length"]))


def ask(sock: socket.socket, *pieces: bytes, answers: int = 1):
    with sock.makefile("rb") as reader:
        for piece in pieces:
            sock.sendall(piece)
        return [read_response(reader) for _ in range(answers)]


@pytest.fixture(scope="module")
def known(service: ServiceProcess) -> tuple[str, str, bytes]:
    """A tenant with one state, a key that the service has in memory, and a body that hits."""
    tenant = new_tenant()
    with service.client() as client:
        entries = {"entries": [registration(tenant)]}
        client.post("/v1/states", json=entries).raise_for_status()
    key = service.key(Scope.BRIDGE, tenants=(tenant,))
    body = json.dumps(lookup_body(tenant)).encode()
    with connection(service) as sock:
        # The first time the key is looked up in Postgres; from then on it is in memory.
        ((status, _, answer),) = ask(sock, request(key, body))
    assert status == 200
    assert json.loads(answer)["match_result"]["classification"] == "exact"
    return tenant, key, body


def hit(response: tuple[int, dict[str, str], bytes]) -> dict[str, object]:
    status, headers, body = response
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert "date" in headers
    assert "x-nexuskv-decision-id" in headers
    result = json.loads(body)["match_result"]
    del result["validation"]["source_handle"]
    return result


def test_every_way_of_sending_gives_the_same_answer(service: ServiceProcess, known) -> None:
    _, key, body = known
    whole = request(key, body)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    chunked = whole.partition(b"\r\n\r\n")[0].replace(
        b"content-length: %d" % len(body), b"transfer-encoding: chunked"
    )
    ways = {
        "whole": (whole,),
        "byte by byte": (whole[:90], *(whole[at : at + 1] for at in range(90, 400)), whole[400:]),
        "head apart": (whole[: -len(body)], body),
        "half a body": (whole[:-20], whole[-20:]),
        "chunked": (chunked + b"\r\n\r\n" + chunks,),
        "chunked in pieces": (chunked + b"\r\n\r\n", chunks[:50], chunks[50:]),
        "with a query": (whole.replace(b"/v1/lookup ", b"/v1/lookup?x=1 "),),
    }  # fmt: skip
    answers = {}
    for name, pieces in ways.items():
        with connection(service) as sock:
            answers[name] = hit(*ask(sock, *pieces))
    assert all(answer == answers["whole"] for answer in answers.values())
    assert answers["whole"]["classification"] == "exact"


def test_pipelined_requests_are_answered_in_their_order(service: ServiceProcess, known) -> None:
    _, key, body = known
    bad = request(key, b"{")
    health = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    sent = request(key, body) + health + request(key, body) + bad + request(key, body)
    with connection(service) as sock:
        first = ask(sock, sent, answers=5)
        # And the connection goes on.
        again = ask(sock, request(key, body))
    assert [status for status, _, _ in first] == [200, 200, 200, 400, 200]
    assert json.loads(first[1][2])["status"] == "ok"
    assert json.loads(first[3][2])["error"]["code"] == "invalid_json"
    assert hit(first[0]) == hit(first[4]) == hit(*again)


@pytest.mark.parametrize(("version", "extra"), [("1.1", ["connection: close"]), ("1.0", [])])
def test_a_connection_that_ends_with_its_answer_is_closed(
    service: ServiceProcess, known, version: str, extra: list[str]
) -> None:
    _, key, body = known
    with connection(service) as sock, sock.makefile("rb") as reader:
        sock.sendall(request(key, body, *extra, version=version))
        hit(read_response(reader))
        assert reader.read() == b""


def test_a_client_that_waits_for_continue_gets_it(service: ServiceProcess, known) -> None:
    _, key, body = known
    head = request(key, body, "expect: 100-continue")[: -len(body)]
    with connection(service) as sock, sock.makefile("rb") as reader:
        sock.sendall(head)
        assert reader.readline().startswith(b"HTTP/1.1 100")
        assert reader.readline() == b"\r\n"
        sock.sendall(body)
        hit(read_response(reader))


def test_refusals_have_the_wires_shape_and_one_decision_each(service, known) -> None:
    tenant, key, _ = known
    mine = json.loads(json.dumps(lookup_body(tenant)))
    odd = json.dumps(mine | {"identity": mine["identity"] | {"semantic_type": "odd"}}).encode()
    foreign = json.dumps(lookup_body(new_tenant())).encode()
    unscoped = service.key(Scope.STATES_READ, tenants=(tenant,))
    with service.client() as client:
        before = len(decisions_of(client, 0, tenant=tenant, outcome="rejected"))
    with connection(service) as sock:
        # The unknown key goes first through Postgres, and then through memory.
        for _ in range(2):
            ((status, headers, body),) = ask(sock, request(unscoped, odd))
            assert (status, json.loads(body)["error"]["code"]) == (403, "tenant_forbidden")
            assert "x-request-id" in headers
        ((status, _, body),) = ask(sock, request(key, foreign))
        assert (status, json.loads(body)["error"]["code"]) == (403, "tenant_forbidden")
        ((status, headers, body),) = ask(sock, request(key, odd, "x-request-id: mine-1"))
        assert (status, json.loads(body)["error"]["code"]) == (422, "unsupported_identity")
        assert headers["x-request-id"] == "mine-1"
        decision_id = headers["x-nexuskv-decision-id"]
    with service.client() as client:
        found = decisions_of(client, before + 1, tenant=tenant, outcome="rejected")
    assert len(found) == before + 1
    assert found[0]["decision_id"] == decision_id


def test_a_key_that_nobody_knows_is_refused(service: ServiceProcess, known) -> None:
    _, key, body = known
    unknown = key[:-4] + "0000"
    with connection(service) as sock:
        ((status, _, answer),) = ask(sock, request(unknown, body))
    assert (status, json.loads(answer)["error"]["code"]) == (401, "unauthorized")


def test_a_trace_is_continued(service: ServiceProcess, known) -> None:
    _, key, body = known
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with connection(service) as sock:
        ((_, headers, _),) = ask(
            sock, request(key, body, f"traceparent: 00-{trace_id}-b7ad6b7169203331-01")
        )
    assert headers["traceparent"].startswith(f"00-{trace_id}-")
    assert headers["traceparent"].endswith("-01")


def test_one_head_again_and_again_is_answered_by_what_follows_it(service, known) -> None:
    _, key, body = known
    longer = body.replace(b"{", b"{   ", 1)
    foreign = json.dumps(lookup_body(new_tenant())).encode()
    other = service.key(Scope.BRIDGE, tenants=(new_tenant(),))
    health = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with connection(service) as sock:
        first = hit(*ask(sock, request(key, body)))
        for _ in range(3):
            assert hit(*ask(sock, request(key, longer))) == first
            # Others in between are themselves, and leave no trace.
            ((status, _, _),) = ask(sock, health)
            assert status == 200
            assert hit(*ask(sock, request(key, body))) == first
            ((status, _, answer),) = ask(sock, request(other, body))
            assert (status, json.loads(answer)["error"]["code"]) == (403, "tenant_forbidden")
            ((status, _, answer),) = ask(sock, request(key, foreign))
            assert (status, json.loads(answer)["error"]["code"]) == (403, "tenant_forbidden")
            assert [hit(each) for each in ask(sock, request(key, body) * 2, answers=2)] == [
                first
            ] * 2
            whole = request(key, longer)
            assert hit(*ask(sock, whole[:-7], whole[-7:])) == first


def test_a_body_that_looks_like_the_request_before_is_a_body(service, known) -> None:
    _, key, body = known
    again = request(key, body)
    with connection(service) as sock, sock.makefile("rb") as reader:
        for _ in range(2):
            sock.sendall(again)
            hit(read_response(reader))
        # Of a request that is answered with its head, while its body is still on its way.
        inner = again * 3
        refused = request("nkv_" + "0" * 60, inner)
        sock.sendall(refused[: -len(inner)])
        sock.sendall(inner[: len(again)])
        status, _, answer = read_response(reader)
        assert (status, json.loads(answer)["error"]["code"]) == (401, "unauthorized")
        for _ in range(2):
            sock.sendall(again)
        sock.shutdown(socket.SHUT_WR)
        # Nothing of it was answered as a lookup.
        assert reader.read() == b""
