"""A head that a connection has seen before is read as the parser would read it, or not at all."""

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bridge.same_head import Head, head_of


class Parsed:
    """What a parser makes of one whole request; `complete` only where it is no more than one."""

    def __init__(self, data: bytes) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.messages = 0
        self.begun = 0
        httptools.HttpRequestParser(self).feed_data(data)

    @property
    def complete(self) -> bool:
        return self.messages == self.begun == 1

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1

    def but_length(self) -> Any:
        return self.url, [each for each in self.headers if each[0] != b"content-length"]


def kept(data: bytes) -> Head | None:
    parsed = Parsed(data)
    assert parsed.complete
    return head_of(data, parsed.headers, len(parsed.body))


HEAD = b"POST /a?b=c HTTP/1.1\r\nhost: x\r\nContent-Length: %b\r\nx: y\r\n\r\n"


@pytest.mark.parametrize("length", [0, 1, 9, 10, 4_096, 999_999])
def test_another_length_of_body_is_the_same_head(length: int) -> None:
    head = kept(HEAD % b"2" + b"ab")
    assert head is not None
    body = bytes(length)
    assert head.body_of(HEAD % b"%d" % length + body) == body


@pytest.mark.parametrize(
    "data",
    [
        HEAD % b"3" + b"ab",
        HEAD % b"2" + b"abc",
        HEAD % b"2" + b"ab" + HEAD % b"2" + b"ab",
        HEAD % b"" + b"ab",
        HEAD % b" 2" + b"ab",
        HEAD % b"+2" + b"ab",
        HEAD % b"2 " + b"ab",
        HEAD % "２".encode() + b"ab",
        HEAD % b"2\r\ncontent-length: 2" + b"ab",
        HEAD % b"00000002" + b"ab",
        (HEAD % b"2").replace(b"x: y", b"x: z") + b"ab",
        (HEAD % b"2").replace(b"/a", b"/A") + b"ab",
        (HEAD % b"2").replace(b"host", b"hosT") + b"ab",
        b" " + HEAD % b"2" + b"ab",
        HEAD[:30],
        b"",
    ],
)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    head = kept(HEAD % b"2" + b"ab")
    assert head is not None
    assert head.body_of(data) is None


def test_what_leaves_a_doubt_is_not_kept() -> None:
    chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    assert kept(chunked) is None
    assert kept(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n") is None
    # Of a request that came in two pieces only the last one is here.
    whole = HEAD % b"2" + b"ab"
    parsed = Parsed(whole)
    assert all(head_of(whole[at:], parsed.headers, 2) is None for at in range(31, len(whole)))


NAMES = st.sampled_from([b"host", b"accept", b"x-a", b"Content-Type", b"X-Content-Length"])
VALUES = st.binary(max_size=12).map(
    lambda text: bytes(each for each in text if 32 < each < 127 and each != 58)
)
LENGTHS = st.sampled_from([b"content-length: ", b"Content-Length:", b"CONTENT-LENGTH:\t "])


@given(
    before=st.lists(st.tuples(NAMES, VALUES), max_size=3),
    after=st.lists(st.tuples(NAMES, VALUES), max_size=3),
    spelt=LENGTHS,
    first=st.binary(max_size=20),
    second=st.binary(max_size=300),
    claimed=st.none() | st.integers(min_value=0, max_value=400),
    mangled=st.none() | st.tuples(st.integers(min_value=0, max_value=80), st.binary(max_size=3)),
)
def test_a_body_that_is_found_is_the_one_of_the_parser(  # noqa: PLR0917 - drawn
    before: list[tuple[bytes, bytes]],
    after: list[tuple[bytes, bytes]],
    spelt: bytes,
    first: bytes,
    second: bytes,
    claimed: int | None,
    mangled: tuple[int, bytes] | None,
) -> None:
    def request(body: bytes, length: int) -> bytes:
        lines = [b"POST /p?q HTTP/1.1", *(b"%b: %b" % each for each in before)]
        lines += [b"%b%d" % (spelt, length), *(b"%b: %b" % each for each in after)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    one = request(first, len(first))
    head = kept(one)
    assert head is not None
    data = request(second, len(second) if claimed is None else claimed)
    if mangled is not None:
        at, instead = mangled
        data = data[:at] + instead + data[at + 1 :]
    body = head.body_of(data)
    if body is None:
        assert mangled is not None or claimed not in (None, len(second))
        return
    parsed = Parsed(data)
    assert parsed.complete
    assert parsed.body == body
    assert parsed.but_length() == Parsed(one).but_length()
