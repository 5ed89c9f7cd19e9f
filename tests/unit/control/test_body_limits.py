"""Bodies over the limit, against a real server and a client on a bare socket."""

import json
import socket
from collections.abc import Iterator
from typing import Self

import pytest

from app import http_limits
from app.errors import ErrorCode, NexusError
from app.http_limits import (
    BodyLimitMiddleware,
    ClientDisconnectedError,
    announced_bytes,
    read_body,
)

MIB = 1024 * 1024


async def echo_length(scope, receive, send) -> None:
    """Answers how many bytes arrived, and in how many messages."""
    messages = body_bytes = 0
    while True:
        message = await receive()
        messages += 1
        body_bytes += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    answer = json.dumps({"bytes": body_bytes, "messages": messages}).encode()
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture(scope="module")
def port(serve) -> Iterator[int]:
    with serve(BodyLimitMiddleware(echo_length)) as port:
        yield port


class Client:
    """An HTTP client that does exactly what it is told."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.reader = self.socket.makefile("rb")

    def head(self, *headers: str) -> None:
        lines = ["POST /v1/states HTTP/1.1", "Host: localhost", *headers, "", ""]
        self.socket.sendall("\r\n".join(lines).encode())

    def chunk(self, data: bytes) -> None:
        self.socket.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def pour(self, data: bytes, *, times: int) -> int:
        """Send chunks until the server cuts the connection; return the bytes that went out."""
        for sent in range(times):
            try:
                self.chunk(data)
            except OSError:
                return sent * len(data)
        return times * len(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        status = int(self.reader.readline().split()[1])
        headers = {}
        while line := self.reader.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, self.reader.read(int(headers["content-length"]))

    def is_closed_by_server(self) -> bool:
        return self.reader.read(1) == b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.reader.close()
        self.socket.close()


def assert_too_large(answer: tuple[int, dict[str, str], bytes]) -> None:
    status, headers, body = answer
    assert status == 413
    assert headers["content-type"] == "application/problem+json"
    problem = json.loads(body)
    assert problem["code"] == "request_too_large"
    assert problem["retryable"] is False
    assert str(8 * MIB) in problem["detail"]


def test_an_announced_body_over_the_limit_is_answered_before_it_is_sent(port: int) -> None:
    with Client(port) as client:
        client.head(f"Content-Length: {8 * MIB + 1}")
        assert_too_large(client.answer())


def test_a_client_that_sends_everything_first_still_sees_the_answer(port: int) -> None:
    with Client(port) as client:
        client.head(f"Content-Length: {20 * MIB}")
        client.socket.sendall(b"x" * (20 * MIB))
        assert_too_large(client.answer())
        assert client.is_closed_by_server()


def test_a_chunked_body_over_the_limit_is_answered(port: int) -> None:
    with Client(port) as client:
        client.head("Transfer-Encoding: chunked")
        for _ in range(12):
            client.chunk(b"x" * MIB)
        client.chunk(b"")
        assert_too_large(client.answer())
        assert client.is_closed_by_server()


def test_an_endless_body_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "DRAIN_BYTES", 4 * MIB)
    with Client(port) as client:
        client.head("Transfer-Encoding: chunked")
        sent_bytes = client.pour(b"x" * MIB, times=512)
        assert 8 * MIB <= sent_bytes < 128 * MIB


def test_a_client_that_stalls_is_let_go(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "DRAIN_S", 0.1)
    with Client(port) as client:
        client.head(f"Content-Length: {9 * MIB}")
        client.socket.sendall(b"x")
        assert_too_large(client.answer())
        assert client.is_closed_by_server()


def test_who_waits_for_continue_is_answered_and_sends_nothing(port: int) -> None:
    with Client(port) as client:
        client.head(f"Content-Length: {9 * MIB}", "Expect: 100-continue")
        assert_too_large(client.answer())
        assert client.is_closed_by_server()


@pytest.mark.parametrize("chunked", [False, True])
def test_exactly_the_limit_passes_as_one_message(port: int, chunked: bool) -> None:
    with Client(port) as client:
        if chunked:
            client.head("Transfer-Encoding: chunked")
            for _ in range(8):
                client.chunk(b"x" * MIB)
            client.chunk(b"")
        else:
            client.head(f"Content-Length: {8 * MIB}")
            client.socket.sendall(b"x" * (8 * MIB))
        status, _, body = client.answer()
        assert status == 200
        assert json.loads(body) == {"bytes": 8 * MIB, "messages": 1}


def test_the_connection_serves_the_next_request(port: int) -> None:
    with Client(port) as client:
        for size in (3, 5):
            client.head(f"Content-Length: {size}")
            client.socket.sendall(b"x" * size)
            assert json.loads(client.answer()[2])["bytes"] == size


def test_the_server_outlives_a_client_that_hangs_up(port: int) -> None:
    with Client(port) as client:
        client.head("Content-Length: 1000")
        client.socket.sendall(b"x")
    with Client(port) as client:
        client.head("Content-Length: 2")
        client.socket.sendall(b"xx")
        assert client.answer()[0] == 200


def scripted(*messages):
    pending = list(messages)

    async def receive():
        return pending.pop(0)

    return receive


async def test_a_single_message_is_returned_without_a_copy() -> None:
    body = b"x" * 100
    receive = scripted({"type": "http.request", "body": body, "more_body": False})
    assert await read_body({"headers": []}, receive, 100) is body


async def test_the_pieces_of_a_body_are_joined_in_order() -> None:
    receive = scripted(
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b"c"},
    )
    assert await read_body({"headers": []}, receive, 3) == b"abc"


async def test_a_disconnect_is_no_error_of_the_caller() -> None:
    receive = scripted(
        {"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.disconnect"}
    )
    with pytest.raises(ClientDisconnectedError):
        await read_body({"headers": []}, receive, 10)


@pytest.mark.parametrize(
    "values", [[b"-1"], [b"+1"], [b"1_0"], [b"0x1"], [b""], [b"1 "], [b"1", b"1"], [b"\xb2"]]
)
def test_a_length_that_is_no_number_is_refused(values: list[bytes]) -> None:
    with pytest.raises(NexusError) as refusal:
        announced_bytes([(b"content-length", value) for value in values])
    assert refusal.value.code is ErrorCode.INVALID_CONTENT_LENGTH


async def test_an_absurd_length_is_too_large_and_nothing_is_read() -> None:
    scope = {"headers": [(b"content-length", b"9" * 5000)]}
    with pytest.raises(NexusError) as refusal:
        await read_body(scope, scripted(), 10)
    assert refusal.value.code is ErrorCode.REQUEST_TOO_LARGE
    assert announced_bytes([(b"content-length", b"000012")]) == 12
