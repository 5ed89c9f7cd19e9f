"""Requests whose head a connection has seen before.

A client that keeps a connection sends one head over and over: but for the length of the body, the
same bytes. A parser that stood before a message and made one request of them would make the same
request of them again, so that it need not be asked.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

Headers = Sequence[tuple[bytes, bytes]]
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)\r\n", re.IGNORECASE)
_END: Final = b"\r\n\r\n"
# Of a body's length: nothing larger is read in one piece.
_MAX_DIGITS: Final = 7


class Head(NamedTuple):
    """The bytes of a head before and after the digits of the body's length."""

    before: bytes
    after: bytes

    def body_of(self, data: bytes) -> bytes | None:
        """The body, where data is this head with the length of what follows it; else None."""
        before, after = self
        at = len(before)
        if not data.startswith(before):
            return None
        end = data.find(b"\r", at, at + _MAX_DIGITS + 1)
        if end <= at or not data.startswith(after, end):
            return None
        digits = data[at:end]
        start = end + len(after)
        if not digits.isdigit() or int(digits) != len(data) - start:
            return None
        return data[start:]


def head_of(data: bytes, headers: Headers, body_bytes: int) -> Head | None:
    """The head of a request that data is the whole of, as a parser saw it; None where its bytes
    leave a doubt.
    """
    names = [name for name, _ in headers]
    end = data.find(_END) + len(_END)
    if end + body_bytes != len(data) or names.count(b"content-length") != 1:
        return None
    found = _LENGTH.findall(data, 0, end)
    if len(found) != 1 or b"transfer-encoding" in names or int(found[0]) != body_bytes:
        return None
    match = _LENGTH.search(data, 0, end)
    assert match is not None
    return Head(data[: match.start(1)], data[match.end(1) : end])
